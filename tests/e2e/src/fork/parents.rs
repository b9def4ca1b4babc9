//! The VMs that tests fork from. Each is snapshotted when the first test wants it and removed after the last.

#![expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use engine::{BootSpec, Existing, ReadyCheck, Removal, SnapshotSpec, WarmUp, remove_snapshot, snapshot};
use proto::guest::AGENT_PORT;
use session::{Connection, EvalRequest};
use types::progress::{Progress, Silent, Stage};
use types::{Dirs, Interpreter, Modules, Tag};

use crate::host::Host;

const WARM_LIMIT: Duration = Duration::from_secs(120);
/// What the warm parent does last: it draws from every generator, so that each has a state to inherit, and leaves
/// things for its children to change.
const PRIME: &str = "import os, random, ssl, time, uuid, numpy\n\
    word, numbers = 'parent', numpy.arange(10)\n\
    drawn = random.random(), numpy.random.random(), ssl.RAND_bytes(8), uuid.uuid4()\n\
    parent_monotonic = time.monotonic()";
/// Gives the wide parent's children a hook.
const GREEDY_HOOK: &str = "mkdir -p /etc/forkd/renew.d && cd /etc/forkd/renew.d && cat > 50-greedy <<'END'\n\
    #!/bin/sh\n\
    [ -z \"$GREEDY\" ] || exec dd if=/dev/zero of=/dev/null bs=200M count=1\n\
    END\n\
    chmod +x 50-greedy";
/// What the busy parent is busy with.
const BUSY: &str = include_str!("busy.py");
/// For how long a process of the busy parent sleeps, in seconds: longer than freezing it takes.
pub(crate) const SLEEP: f64 = 12.0;

/// What the native parent's children remember.
pub(crate) const WORD: &str = "parent";

/// Whom to fork from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// One vCPU and an interpreter that has been used.
    Warm,
    /// One vCPU and a program in the middle of everything.
    Busy,
    /// Four vCPUs, and a renewal that needs 200 MiB in children that have `GREEDY` in their environment.
    Wide,
    /// As little as there can be of Linux: a shell.
    Tiny,
    /// No Linux at all, and a [`WORD`] that its memory and its disk keep.
    Native,
    /// The same with four vCPUs.
    NativeWide,
}

impl Parent {
    fn tag(self) -> Result<Tag> {
        let name = match self {
            Self::Warm => "e2e-warm",
            Self::Busy => "e2e-busy",
            Self::Wide => "e2e-wide",
            Self::Tiny => "e2e-tiny",
            Self::Native => "e2e-native",
            Self::NativeWide => "e2e-native-wide",
        };
        Ok(name.parse()?)
    }

    fn spec(self, host: &Host) -> Result<SnapshotSpec> {
        let python = |module: &str| -> Result<WarmUp> {
            let modules = Modules::try_from(vec![module.parse()?])?;
            Ok(WarmUp { interpreter: Some(Interpreter::Python3), modules, ..WarmUp::default() })
        };
        let (with_python, tiny) = (("512M", &host.artifacts.python), ("128M", &host.artifacts.tiny));
        let (vcpus, (memory, image), warm_up) = match self {
            Self::Warm => ("1", with_python, python("numpy")?),
            Self::Busy => {
                let warm_up = WarmUp {
                    command: Some(busy_command()),
                    ready: Some(ReadyCheck::Command(busy_ready())),
                    ..python("socket")?
                };
                ("1", with_python, warm_up)
            }
            Self::Wide => ("4", with_python, WarmUp { command: Some(GREEDY_HOOK.into()), ..WarmUp::default() }),
            Self::Tiny => ("1", tiny, WarmUp::default()),
            Self::Native | Self::NativeWide => {
                let mut spec = host.native_files()?.snapshot_spec(self.tag()?);
                if self == Self::NativeWide {
                    spec.boot.vcpus = "4".parse()?;
                }
                return Ok(SnapshotSpec { existing: Existing::Replace, ..spec });
            }
        };
        let (memory, image) = (memory.parse()?, image.clone());
        let boot = BootSpec { vcpus: vcpus.parse()?, memory, image, ..host.spec() };
        let tag = self.tag()?;
        Ok(SnapshotSpec {
            tag,
            existing: Existing::Replace,
            boot,
            egress: None,
            recipe: None,
            ports: Vec::new(),
            warm_up,
            limit: WARM_LIMIT,
        })
    }
}

fn busy_command() -> String {
    format!("cat > /root/busy.py <<'END'\n{BUSY}\nEND\nsetsid python3 /root/busy.py &")
}

/// Begins to sleep when all else is ready: the sleeper must still sleep when the VM is frozen.
fn busy_ready() -> String {
    let up = "cut -d' ' -f1 /proc/uptime";
    let sleeper = format!("{up} > /run/slept.new; sleep {SLEEP}; {up} >> /run/slept.new; mv /run/slept.new /run/slept");
    format!("test -e /run/busy && {{ setsid sh -c \"{sleeper}\" > /dev/null 2>&1 < /dev/null & }}")
}

/// Which parents there are.
#[derive(Debug, Default)]
pub(crate) struct Parents {
    taken: Mutex<Vec<Parent>>,
}

impl Parents {
    /// The parent's snapshot; whoever wants it first waits until it is taken, and so does everybody else.
    pub(crate) fn get(&self, parent: Parent, host: &Host) -> Result<Tag> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if !taken.contains(&parent) {
            take(parent, host).with_context(|| format!("the snapshot of {parent:?}"))?;
            taken.push(parent);
        }
        parent.tag()
    }

    /// Removes the snapshots and ends their templates.
    pub(crate) fn remove(&self, dirs: &Dirs) {
        for parent in self.taken.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let removed = parent.tag().and_then(|tag| Ok(remove_snapshot(&tag, Removal::Force, dirs)?));
            if let Err(error) = removed {
                eprintln!("the snapshot of {parent:?} is left: {error:#}");
            }
        }
    }
}

fn take(parent: Parent, host: &Host) -> Result<()> {
    let spec = parent.spec(host)?;
    if parent != Parent::Warm {
        snapshot(spec, &host.dirs, &Silent)?;
        return Ok(());
    }
    // In a place of its own, so that the VM can be found while it is warm.
    let home = tempfile::tempdir()?;
    let dirs = Dirs { run: home.path().into(), ..host.dirs.clone() };
    let primer = Primer { dirs: &dirs, primed: Mutex::default() };
    snapshot(spec, &dirs, &primer)?;
    primer.primed.into_inner().unwrap_or_else(PoisonError::into_inner).context("nobody primed it")?
}

/// Runs [`PRIME`] between the warm-up and the freeze, as a module of a user's own would have.
struct Primer<'a> {
    dirs: &'a Dirs,
    primed: Mutex<Option<Result<()>>>,
}

impl Progress for Primer<'_> {
    fn stage(&self, what: &str, _total: Option<u64>) -> Box<dyn Stage> {
        if what.starts_with("Syncing") {
            *self.primed.lock().unwrap_or_else(PoisonError::into_inner) = Some(prime(&self.dirs.run));
        }
        Box::new(Silent)
    }
}

fn prime(run: &Path) -> Result<()> {
    let mut vms = fs::read_dir(run.join("vms"))?.collect::<Result<Vec<_>, _>>()?;
    vms.retain(|vm| vm.file_name().to_string_lossy().starts_with("vm-"));
    let [vm] = &vms[..] else { bail!("{vms:?} is not one VM") };
    let stream = session::connect_vsock(&vm.path().join("vsock.sock"), AGENT_PORT)?;
    let mut connection = Connection::open(stream, None, WARM_LIMIT)?;
    let timeout_ms = u64::try_from(WARM_LIMIT.as_millis())?;
    let primed = connection.eval(&EvalRequest { code: PRIME.into(), timeout_ms })?;
    ensure!(primed.error.is_none(), "{primed:?}");
    Ok(())
}
