//! What is known of the machine, without changing anything.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use types::Dirs;

use crate::layout::Layout;
use crate::lock::Lock;
use crate::process::Process;
use crate::state::{Phase, StateV1};
use crate::{MachineError, disk};

/// How the machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// There is none, and no data of one.
    Absent,
    /// It does not run; its data is there.
    Stopped {
        /// What its data occupies on this computer.
        disk_bytes: u64,
    },
    /// Somebody is starting it.
    Starting {
        /// QEMU's process.
        pid: i32,
    },
    /// It runs.
    Running(Running),
    /// Something ended where it should not have; the next start recovers.
    Broken {
        /// What a person should read.
        why: String,
    },
}

/// A machine that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// QEMU's process.
    pub pid: i32,
    /// The loopback port that leads to its agent.
    pub port: u16,
    /// Since QEMU was started.
    pub uptime: Duration,
    /// Emulated CPUs.
    pub cpus: u32,
    /// Memory; taken from this computer as it is used.
    pub memory_bytes: u64,
    /// What its data occupies on this computer.
    pub disk_bytes: u64,
    /// `uname -r` inside.
    pub kernel: String,
}

/// How the machine is. Does not ask the machine itself, so it never waits.
///
/// # Errors
/// When the files that tell cannot be read. A damaged one is not an error but [`Status::Broken`].
pub fn status(dirs: &Dirs) -> Result<Status, MachineError> {
    let layout = Layout::new(dirs);
    let disk_bytes = disk::occupied(&layout)?;
    let state = match StateV1::read(&layout) {
        Ok(Some(state)) => state,
        Ok(None) => return Ok(disk_bytes.map_or(Status::Absent, |disk_bytes| Status::Stopped { disk_bytes })),
        Err(error @ MachineError::DamagedState { .. }) => return Ok(Status::Broken { why: error.to_string() }),
        Err(error) => return Err(error),
    };
    let pid = state.process.pid;
    let alive = Process::find(&state.process).map_err(MachineError::process("look for QEMU"))?.is_some();
    let again = "`forkd machine start` starts it again and keeps its data";
    match state.phase {
        _ if !alive => Ok(Status::Broken { why: format!("its QEMU (process {pid}) has ended; {again}") }),
        Phase::Ready => Ok(Status::Running(running(state, disk_bytes.unwrap_or_default()))),
        Phase::Starting if Lock::is_held(&layout)? => Ok(Status::Starting { pid }),
        Phase::Starting => Ok(Status::Broken { why: format!("its start was interrupted; {again}") }),
    }
}

fn running(state: StateV1, disk_bytes: u64) -> Running {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Running {
        pid: state.process.pid,
        port: state.port,
        uptime: Duration::from_secs(now.saturating_sub(state.started_unix_s)),
        cpus: state.cpus,
        memory_bytes: state.memory_bytes,
        disk_bytes,
        kernel: state.kernel,
    }
}
