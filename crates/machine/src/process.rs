//! A process that is known to be the one it was: by its number, the instant it started and the kernel it started
//! under. A number alone comes round again, and what is meant for QEMU would reach a stranger.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

/// Which process, for ever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// When it started, in the kernel's ticks since boot.
    start_ticks: u64,
    /// The boot those ticks count from.
    boot_id: String,
}

/// A process that was alive when it was looked up; what is done through this never reaches another.
#[derive(Debug)]
pub(crate) struct Process {
    identity: Identity,
    fd: OwnedFd,
}

impl Process {
    /// The process with this number now; `None` when there is none.
    pub(crate) fn with_pid(pid: i32) -> io::Result<Option<Self>> {
        let Some(fd) = open(pid)? else { return Ok(None) };
        let Some(start_ticks) = start_ticks(pid)? else { return Ok(None) };
        let process = Self { identity: Identity { pid, start_ticks, boot_id: boot_id()? }, fd };
        Ok((!process.wait(Duration::ZERO)?).then_some(process))
    }

    /// The process this identity was taken from; `None` when it is over.
    pub(crate) fn find(identity: &Identity) -> io::Result<Option<Self>> {
        Ok(Self::with_pid(identity.pid)?.filter(|process| process.identity == *identity))
    }

    pub(crate) const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Waits so long for its end; says whether it has ended.
    pub(crate) fn wait(&self, patience: Duration) -> io::Result<bool> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            match rustix::event::poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends it at once; no error when it is over already.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.fd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn open(pid: i32) -> io::Result<Option<OwnedFd>> {
    // A negative number, from a damaged file, would make it panic.
    let Some(pid) = (pid > 0).then(|| Pid::from_raw(pid)).flatten() else { return Ok(None) };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        // INVAL: the number is a thread's now.
        Err(Errno::SRCH | Errno::INVAL) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// `None` when the process is gone.
fn start_ticks(pid: i32) -> io::Result<Option<u64>> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => parse_start_ticks(&stat).map(Some).ok_or_else(|| io::Error::other("/proc/<pid>/stat is strange")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Field 22 of proc(5)'s stat. The second is the program's name in parentheses and may itself hold any of `) `.
fn parse_start_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_name_full_of_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 2";
        assert_eq!(parse_start_ticks(stat), Some(98765));
        assert_eq!(parse_start_ticks("7 (short) S 1"), None);
        assert_eq!(parse_start_ticks(""), None);
    }

    #[test]
    fn a_process_is_found_until_it_ends_even_before_it_is_reaped() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let process = Process::with_pid(pid).unwrap().unwrap();
        let identity = process.identity().clone();
        assert!(Process::find(&identity).unwrap().is_some());
        assert!(!process.wait(Duration::from_millis(10)).unwrap());
        process.kill().unwrap();
        assert!(process.wait(Duration::from_secs(10)).unwrap());
        assert!(Process::find(&identity).unwrap().is_none(), "a zombie does not count");
        child.wait().unwrap();
        process.kill().unwrap();
        assert!(Process::find(&identity).unwrap().is_none());
    }

    #[test]
    fn the_number_alone_is_not_the_process() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut identity = Process::with_pid(own).unwrap().unwrap().identity().clone();
        identity.start_ticks += 1;
        assert!(Process::find(&identity).unwrap().is_none());
        identity.start_ticks -= 1;
        identity.boot_id.push('x');
        assert!(Process::find(&identity).unwrap().is_none());
        for pid in [0, -1, i32::MAX] {
            assert!(Process::with_pid(pid).unwrap().is_none());
        }
    }
}
