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
        Phase::Ready if alive => Ok(Status::Running(running(state, disk_bytes.unwrap_or_default()))),
        Phase::Ready => Ok(Status::Broken { why: format!("its QEMU (process {pid}) has ended; {again}") }),
        Phase::Starting if alive && Lock::is_held(&layout)? => Ok(Status::Starting { pid }),
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use types::progress::Silent;

    use super::*;
    use crate::state::tests::state_of;
    use crate::stop::{rm, stop};

    fn why(status: &Status) -> &str {
        match status {
            Status::Broken { why } => why,
            other => panic!("{other:?} is not broken"),
        }
    }

    #[test]
    fn every_state_is_told_and_a_stale_one_swept() {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(home.path());
        let layout = Layout::new(&dirs);
        assert_eq!(status(&dirs).unwrap(), Status::Absent);
        assert!(!layout.run.exists(), "asking changes nothing");
        stop(&dirs, &Silent).unwrap();

        // What a QEMU that went away without a word leaves behind.
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        layout.create_run().unwrap();
        layout.create_data().unwrap();
        fs::write(layout.data_disk(), "data").unwrap();
        let mut state = state_of(pid);
        state.write(&layout).unwrap();
        assert!(why(&status(&dirs).unwrap()).contains("interrupted"));
        let lock = Lock::acquire(&layout, &Silent).unwrap();
        assert_eq!(status(&dirs).unwrap(), Status::Starting { pid });
        drop(lock);
        state.phase = Phase::Ready;
        state.write(&layout).unwrap();
        assert!(matches!(status(&dirs).unwrap(), Status::Running(Running { cpus: 2, .. })));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(why(&status(&dirs).unwrap()).contains("has ended"));
        assert!(crate::Machine::find(&dirs).unwrap().is_none());

        stop(&dirs, &Silent).unwrap();
        assert!(matches!(status(&dirs).unwrap(), Status::Stopped { .. }));
        fs::write(layout.state(), "{").unwrap();
        assert!(why(&status(&dirs).unwrap()).contains("damaged"));
        stop(&dirs, &Silent).unwrap();
        assert!(matches!(status(&dirs).unwrap(), Status::Stopped { .. }));
        rm(&dirs).unwrap();
        assert_eq!(status(&dirs).unwrap(), Status::Absent);
        assert!(!layout.run.exists() && !layout.data.exists());
    }

    #[test]
    fn stopping_ends_a_process_that_does_not_listen() {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(home.path());
        let layout = Layout::new(&dirs);
        layout.create_run().unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        state_of(i32::try_from(child.id()).unwrap()).write(&layout).unwrap();
        stop(&dirs, &Silent).unwrap();
        assert!(!child.wait().unwrap().success());
        assert_eq!(status(&dirs).unwrap(), Status::Absent);
    }
}
