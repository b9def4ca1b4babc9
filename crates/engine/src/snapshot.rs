//! From a recipe's parts to a snapshot in the store: boot, warm up, sync, freeze, keep.
//!
//! ```text
//! stage in the store -> boot -> interpreter, command, ready check -> sync -> Freeze -> commit
//! ```
//!
//! The place in the store is taken first, so a tag that is taken costs no boot. Whatever fails or is called off leaves
//! neither a VM nor anything in the store.

mod ready;
mod warm;

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use net::Egress;
use session::SessionError;
use store::{Described, Existing, Origin, Snapshot, Staged, Store, StoreError};
use types::progress::Progress;
use types::{Dirs, RecipeName, Tag};

use crate::boot::{BootError, BootSpec, boot};
use crate::cancel::Cancel;
use crate::freeze::{FreezeError, Frozen};
use crate::process::ProcessError;
use crate::template::{TemplateError, end_unwanted};
use crate::vm::Vm;
use crate::watchdog::{called_off, watched};
use crate::written;

pub use ready::ReadyCheck;
pub use warm::{WarmError, WarmUp};

/// How long the guest may take to write its file systems out.
const SYNC_LIMIT: Duration = Duration::from_secs(120);

/// What to take a snapshot of.
#[derive(Debug)]
pub struct SnapshotSpec {
    /// What it shall be called.
    pub tag: Tag,
    /// What becomes of a snapshot of that name.
    pub existing: Existing,
    /// The VM; with a tap, each child will have a network of its own.
    pub boot: BootSpec,
    /// Where its children may connect to, if nobody says otherwise.
    pub egress: Option<Egress>,
    /// What its disk image was built from.
    pub recipe: Option<RecipeName>,
    /// TCP ports that something listens on in it then.
    pub ports: Vec<NonZeroU16>,
    /// What it does before.
    pub warm_up: WarmUp,
    /// How long the warm-up may take.
    pub limit: Duration,
}

/// Why there is no snapshot. Nothing is left of the try.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The store cannot take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The VM did not boot.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The warm-up failed.
    #[error(transparent)]
    Warm(#[from] WarmError),
    /// The guest could not write its file systems out.
    #[error("the guest could not sync its file systems: {source}")]
    Sync {
        /// Why.
        source: SessionError,
    },
    /// The VM could not be written down.
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    /// The template of the snapshot that was replaced is still there.
    #[error("the snapshot is taken, but the template of the one before still runs")]
    OldTemplate {
        /// Why.
        source: TemplateError,
    },
    /// It was called off.
    #[error("interrupted; nothing is left of the snapshot")]
    Cancelled,
    /// The VM could not be watched.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// A snapshot, and where the time went.
#[derive(Debug)]
pub struct Taken {
    /// It.
    pub snapshot: Snapshot,
    /// Until the agent answered.
    pub boot_us: u64,
    /// The interpreter, the command and the ready check.
    pub warm_us: u64,
    /// All of freezing.
    pub freeze_us: u64,
    /// What was written.
    pub frozen: Frozen,
}

/// Boots a VM, warms it up and keeps it.
///
/// # Errors
/// When any step fails, the time is up or it is called off.
pub fn snapshot(spec: SnapshotSpec, dirs: &Dirs, progress: &dyn Progress) -> Result<Taken, SnapshotError> {
    let SnapshotSpec { tag, existing, boot: boot_spec, egress, recipe, ports, warm_up, limit } = spec;
    let staged = Store::new(dirs).stage(&tag, existing, Origin::booted(vec![boot_spec.image.clone()]))?;
    let cancel = boot_spec.cancel.clone();
    let mut described = Described {
        recipe,
        kernel: String::new(),
        agent: String::new(),
        vcpus: boot_spec.vcpus,
        memory: boot_spec.memory,
        network: boot_spec.tap.is_some(),
        egress: egress.map(|egress| egress.to_string().into()),
        interpreter: warm_up.interpreter,
        ports,
        pause_us: None,
    };
    let stage = progress.stage("Booting the VM", None);
    let vm = boot(boot_spec, dirs)?;
    drop(stage);
    described.kernel.clone_from(&vm.hello().kernel);
    described.agent.clone_from(&vm.hello().agent);
    let boot_us = vm.timings().ready_us;
    let begun = Instant::now();
    prepare(&vm, &warm_up, limit, cancel.as_ref(), progress)?;
    let warm_us = micros(begun.elapsed());
    let begun = Instant::now();
    let frozen = freeze(vm, &staged, cancel.as_ref(), progress)?;
    described.pause_us = Some(frozen.pause_us);
    let snapshot = staged.commit(described)?;
    let freeze_us = micros(begun.elapsed());
    end_unwanted(&tag, dirs).map_err(|source| SnapshotError::OldTemplate { source })?;
    Ok(Taken { snapshot, boot_us, warm_us, freeze_us, frozen })
}

/// Warms it up and has it sync.
fn prepare(
    vm: &Vm,
    warm_up: &WarmUp,
    limit: Duration,
    cancel: Option<&Cancel>,
    progress: &dyn Progress,
) -> Result<(), SnapshotError> {
    let until = Instant::now() + limit;
    let prepared = watched(vm, until + SYNC_LIMIT, cancel, || {
        let stage = progress.stage("Warming up", None);
        warm::Warming { vm, limit, until, cancel, stage: &*stage }.warm(warm_up)?;
        drop(stage);
        let _stage = progress.stage("Syncing the guest's file systems", None);
        warm::sync(vm, SYNC_LIMIT).map_err(|source| SnapshotError::Sync { source })
    })?;
    if called_off(cancel) { Err(SnapshotError::Cancelled) } else { prepared }
}

fn freeze(vm: Vm, staged: &Staged, cancel: Option<&Cancel>, progress: &dyn Progress) -> Result<Frozen, SnapshotError> {
    let _stage = progress.stage("Writing the snapshot", None);
    let (state, memory, layer) = (staged.state()?, staged.memory()?, staged.layer(0)?);
    match vm.freeze(&[&state, &memory, &layer], cancel) {
        Err(FreezeError::Cancelled) => Err(SnapshotError::Cancelled),
        frozen => {
            let frozen = frozen?;
            // Its process is over.
            let closed = written::close(vec![state, memory, layer]);
            closed.map_err(|error| FreezeError::Failed { message: error.to_string() })?;
            Ok(frozen)
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
