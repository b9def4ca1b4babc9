//! Starts the machine, or joins the one that runs.

use std::env;
use std::fs;
use std::path::Path;

use image::GuestKernel;
use proto::guest::GENERATION;
use types::Dirs;
use types::progress::Progress;

use crate::boot::{self, Ingredients};
use crate::digest::Digests;
use crate::layout::Layout;
use crate::lock::Lock;
use crate::state::Parts;
use crate::stop::end_any;
use crate::{Machine, MachineError, program, qemu};

/// Set to 1, a running machine is joined whatever it was made of.
const KEEP: &str = "FORKD_MACHINE_KEEP";

/// A machine that runs and answers: the one there is, if it was made of what a new one would be made of, else a new
/// one. Two that start at once end up with the same machine. If this fails or is interrupted, whatever it began is
/// undone or picked up by the next.
///
/// # Errors
/// When a program is missing, a part cannot be built, or the machine does not come up; the error says which, with the
/// machine's last words.
pub fn start(dirs: &Dirs, agent_binary: &Path, progress: &dyn Progress) -> Result<Machine, MachineError> {
    // Building takes minutes; whoever has no QEMU should know before.
    program::find(qemu::PROGRAM, qemu::PACKAGE)?;
    let layout = Layout::new(dirs);
    let lock = Lock::acquire(&layout, progress)?;
    let root = image::build_machine_root(dirs, progress)?.path;
    let kernel = image::guest_kernel(None, dirs, progress)?;
    let parts = parts(&layout, &root, &kernel, agent_binary)?;
    if let Some(machine) = join(dirs, &parts, progress)? {
        return Ok(machine);
    }
    end_any(&layout, progress)?;
    let machine = boot::boot(&layout, &Ingredients { root, kernel, agent: agent_binary, parts }, progress)?;
    drop(lock);
    Ok(machine)
}

/// The running machine, if it is the one wanted and answers.
fn join(dirs: &Dirs, wanted: &Parts, progress: &dyn Progress) -> Result<Option<Machine>, MachineError> {
    let machine = match Machine::find(dirs) {
        Err(MachineError::DamagedState { .. }) => None,
        found => found?,
    };
    let Some(machine) = machine else { return Ok(None) };
    let stage = progress.stage("joining the machine", None);
    let keep = env::var_os(KEEP).is_some_and(|value| value == "1");
    if let Some(what) = machine.state.parts.difference(wanted).filter(|_| !keep) {
        stage.note(&format!("it was started with {what}; it is started anew"));
        return Ok(None);
    }
    match machine.connect() {
        Ok(_) => Ok(Some(machine)),
        Err(error @ (MachineError::Session { .. } | MachineError::NotRunning | MachineError::Io { .. })) => {
            stage.note(&format!("it does not answer ({error}); it is started anew"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn parts(layout: &Layout, root: &Path, kernel: &GuestKernel, agent: &Path) -> Result<Parts, MachineError> {
    let mut digests = Digests::load(layout);
    let (agent, _) = digests.of(agent)?;
    digests.save()?;
    Ok(Parts { generation: GENERATION, root: version(root)?, kernel: version(&kernel.image)?, agent })
}

/// Tells one version of a large file from another without reading it.
fn version(path: &Path) -> Result<String, MachineError> {
    let meta = fs::metadata(path).map_err(MachineError::io("find", path))?;
    let modified = meta.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    Ok(format!("{} {} {}", path.display(), meta.len(), modified.unwrap_or_default().as_nanos()))
}
