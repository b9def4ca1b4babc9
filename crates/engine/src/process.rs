//! One `forkd-vmm` process as its owner sees it: started, spoken to, listened to, and gone when dropped.
//!
//! The VMM reads the control socket as its standard input and ends by itself when our end closes, so that nothing
//! outlives an owner that was killed. It is a process group of its own: a Ctrl-C in the terminal is ours to handle.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::control::{ControlError, ControlSocket, ToVmm};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::cancel::Cancel;
use crate::hearing::{Waited, hear};
use crate::{page_map, sys};

/// Why the VMM process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It did not start.
    #[error("cannot start {}", program.display())]
    Start {
        /// Which file.
        program: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Its socket failed.
    #[error(transparent)]
    Control {
        /// What the socket says.
        #[from]
        source: ControlError,
    },
    /// Its memory cannot be looked at.
    #[error("cannot look at the VMM's memory")]
    Look {
        /// What the system says.
        source: io::Error,
    },
    /// Waiting for it failed.
    #[error("cannot wait for the VMM")]
    Wait {
        /// What the system says.
        source: io::Error,
    },
}

/// The process; killed and reaped when dropped.
#[derive(Debug)]
pub(crate) struct VmmProcess {
    child: Child,
    control: Arc<ControlSocket>,
}

impl VmmProcess {
    /// Starts `program`, its log going to a new file. It writes to no file beyond that length.
    pub(crate) fn start(program: &Path, log: &Path, longest_file: u64) -> Result<Self, ProcessError> {
        let failed = |source| ProcessError::Start { program: program.into(), source };
        let (ours, theirs) = ControlSocket::pair()?;
        let log = File::create(log).map_err(failed)?;
        let mut command = Command::new(program);
        command.arg("vm").stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::from(log));
        sys::limit_files(&mut command, longest_file);
        let child = command.process_group(0).spawn().map_err(failed)?;
        Ok(Self { child, control: Arc::new(ours) })
    }

    /// The socket, for who must speak to the VMM from another thread.
    pub(crate) fn control(&self) -> Arc<ControlSocket> {
        Arc::clone(&self.control)
    }

    pub(crate) fn send(&self, message: &ToVmm, fds: &[BorrowedFd<'_>]) -> Result<(), ProcessError> {
        Ok(self.control.send(message, fds)?)
    }

    /// Its page map, for it to read.
    pub(crate) fn page_map(&self) -> Result<File, ProcessError> {
        let pid = i32::try_from(self.child.id()).unwrap_or_default();
        page_map::open(pid).map_err(|source| ProcessError::Look { source })
    }

    /// Waits for what the VMM says next.
    pub(crate) fn wait(&self, until: Instant, cancel: Option<&Cancel>) -> Result<Waited, ProcessError> {
        Ok(hear(&self.control, until, cancel)?)
    }

    /// Kills the process from whatever thread sees that it is stuck; its owner notices that it is gone.
    pub(crate) fn end(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // The number is still the process's own: reaping it takes the owner's `&mut`.
        if let Err(error) = rustix::process::kill_process(pid, rustix::process::Signal::KILL) {
            log::warn!("VMM process {} cannot be killed: {error}", self.child.id());
        }
    }

    /// Kills the process and says how it ended; it may have ended by itself before.
    pub(crate) fn kill(&mut self) -> Result<ExitStatus, ProcessError> {
        let waited = |source| ProcessError::Wait { source };
        self.child.kill().map_err(waited)?;
        self.child.wait().map_err(waited)
    }

    /// Gives a process that closed its socket a moment to end by itself, so that its own exit status is seen.
    pub(crate) fn reap(&mut self) -> Result<ExitStatus, ProcessError> {
        const MOMENT: Duration = Duration::from_secs(1);
        let pid = rustix::process::Pid::from_child(&self.child);
        let waited = |error: rustix::io::Errno| ProcessError::Wait { source: error.into() };
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).map_err(waited)?;
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&timespec(MOMENT)))).map_err(waited)?;
        self.kill()
    }
}

impl Drop for VmmProcess {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            log::warn!("VMM process {} is left behind: {error}", self.child.id());
        }
    }
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    // A wait longer than the clock can count is as good as none at all; a day is.
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: 86_400, tv_nsec: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program in the VMM's place: what matters here is only that it is a process. Written by another process: a
    /// descriptor open for writing here could be inherited by a concurrent test's child, and the file then not run.
    fn script(dir: &Path, body: &str) -> PathBuf {
        let path = dir.join("vmm");
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod 755 "$0""#;
        let written = Command::new("sh").args(["-c", write]).arg(&path).arg(body).status().unwrap();
        assert!(written.success());
        path
    }

    fn start(body: &str) -> (tempfile::TempDir, VmmProcess) {
        let dir = tempfile::tempdir().unwrap();
        let process = VmmProcess::start(&script(dir.path(), body), &dir.path().join("log"), 1 << 20).unwrap();
        (dir, process)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn a_process_that_dies_is_noticed_and_its_log_kept() {
        let (dir, mut process) = start("echo 'no such thing' >&2; exit 3");
        assert!(matches!(process.wait(soon(), None), Ok(Waited::Gone)));
        assert_eq!(process.reap().unwrap().code(), Some(3));
        assert_eq!(std::fs::read_to_string(dir.path().join("log")).unwrap(), "no such thing\n");
    }

    #[test]
    fn dropping_it_leaves_no_process() {
        let (_dir, process) = start("exec sleep 1000");
        let proc = PathBuf::from(format!("/proc/{}", process.child.id()));
        assert!(proc.exists());
        drop(process);
        assert!(!proc.exists());
    }

    #[test]
    fn a_wait_ends_by_the_clock_or_when_called_off() {
        let (_dir, process) = start("exec sleep 1000");
        let cancel = Cancel::new().unwrap();
        let soonest = Instant::now() + Duration::from_millis(20);
        assert!(matches!(process.wait(soonest, Some(&cancel)), Ok(Waited::TimedOut)));
        assert!(Instant::now() >= soonest);
        cancel.cancel();
        assert!(matches!(process.wait(soon(), Some(&cancel)), Ok(Waited::Cancelled)));
        assert!(matches!(process.wait(soon(), Some(&cancel)), Ok(Waited::Cancelled)), "it stays called off");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = VmmProcess::start(Path::new("/nowhere/vmm"), Path::new("/dev/null"), 1 << 20).unwrap_err();
        assert_eq!(error.to_string(), "cannot start /nowhere/vmm");
    }
}
