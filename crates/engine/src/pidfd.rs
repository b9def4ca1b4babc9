//! A process that is not our child, held so that its number cannot come to mean another one.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use proto::control::ControlSocket;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::process::timespec;

/// A process, running or just over.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    fd: OwnedFd,
}

impl Process {
    /// The process of that number; `None` when there is none.
    pub(crate) fn open(pid: i32) -> io::Result<Option<Self>> {
        let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Ok(Some(Self { pid, fd })),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The process of that number, if it began at that time.
    pub(crate) fn open_begun(pid: i32, begun: u64) -> io::Result<Option<Self>> {
        let Some(process) = Self::open(pid)? else { return Ok(None) };
        // Read after it is held: if it matches, what is held is what is meant.
        Ok((begun_at(pid)? == Some(begun)).then_some(process))
    }

    /// The process that made the socket at the other end listen.
    pub(crate) fn of_listener(control: &ControlSocket) -> io::Result<Option<Self>> {
        Self::open(rustix::net::sockopt::socket_peercred(control)?.pid.as_raw_nonzero().get())
    }

    pub(crate) const fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Ends it at once; one that is over already is no error.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.fd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for its end; false when the time is up before.
    pub(crate) fn wait(&self, until: Instant) -> io::Result<bool> {
        loop {
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            let left = timespec(until.saturating_duration_since(Instant::now()));
            match rustix::event::poll(&mut fds, Some(&left)) {
                Ok(count) => return Ok(count > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Process {
    /// Readable once the process is over.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// When a process began, in clock ticks since the system did; `None` when it is gone.
pub(crate) fn begun_at(pid: i32) -> io::Result<Option<u64>> {
    let stat = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => return Ok(None),
        Err(error) => return Err(error),
    };
    // The name in parentheses may hold anything, also blanks and parentheses; the 22nd field is the 20th after it.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace());
    Ok(fields.and_then(|mut fields| fields.nth(19)).and_then(|field| field.parse().ok()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_of_the_same_number() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let begun = begun_at(pid).unwrap().unwrap();
        let process = Process::open_begun(pid, begun).unwrap().unwrap();
        assert!(Process::open_begun(pid, begun + 1).unwrap().is_none());
        assert!(!process.wait(Instant::now()).unwrap());
        process.kill().unwrap();
        assert!(process.wait(Instant::now() + Duration::from_secs(20)).unwrap());
        child.wait().unwrap();
        process.kill().unwrap();
        assert!(Process::open(pid).unwrap().is_none());
        assert_eq!(begun_at(pid).unwrap(), None);
    }
}
