//! A process that is not our child, held so that its number cannot come to mean another one.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use proto::control::{ControlSocket, VmUid};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::process::timespec;

/// Which field of `/proc/PID/stat` after the name says who its parent is.
const PARENT: usize = 1;
/// Which says when it began.
const BEGUN: usize = 19;

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

    /// The process of that number, if it is a child of that other one. A VMM that was taken over can say any number; what
    /// is then ended must at least be its own.
    pub(crate) fn open_child_of(parent: i32, pid: i32) -> io::Result<Option<Self>> {
        let Some(process) = Self::open(pid)? else { return Ok(None) };
        Ok((stat(pid, PARENT)? == Some(parent.into())).then_some(process))
    }

    /// Whether a process of that number lives and is no child of that other one.
    pub(crate) fn is_anothers(parent: i32, pid: i32) -> io::Result<bool> {
        Ok(Self::open(pid)?.is_some() && stat(pid, PARENT)?.is_some_and(|found| found != i64::from(parent)))
    }

    /// The process that made the socket at the other end listen, if it is of that user. The system only knows which number
    /// it had: a VMM that was taken over can have had a copy listen and end, and the number is somebody else's by now.
    pub(crate) fn of_listener(control: &ControlSocket, uid: Option<VmUid>) -> io::Result<Option<Self>> {
        let pid = rustix::net::sockopt::socket_peercred(control)?.pid.as_raw_nonzero().get();
        let Some(process) = Self::open(pid)? else { return Ok(None) };
        if uid.is_some() && user(pid)? != uid {
            log::warn!("process {pid}, which is said to listen, is not user {uid:?}");
            return Ok(None);
        }
        Ok(Some(process))
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

/// A process that is said to be a child of a template's. Children speak by the same connection as the template does, so
/// one that was taken over can say it of any number. Whether it is true is found out by who wants to end it: that takes
/// time, of which most children, who are never ended here, need none.
#[derive(Debug)]
pub(crate) struct Alleged {
    process: Process,
    template: i32,
    uid: Option<VmUid>,
}

impl Alleged {
    /// The process of that number, said to be that template's child and to run, or to be about to, as that user.
    pub(crate) fn open(pid: i32, template: i32, uid: Option<VmUid>) -> io::Result<Option<Self>> {
        Ok(Process::open(pid)?.map(|process| Self { process, template, uid }))
    }

    pub(crate) const fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// It, if the system says the same. A child whose template is over has another parent, but has become its user by then,
    /// or is on its way to be found dead.
    pub(crate) fn proven(&self) -> io::Result<Option<&Process>> {
        let pid = self.pid();
        let is_its = stat(pid, PARENT)? == Some(self.template.into()) || (self.uid.is_some() && user(pid)? == self.uid);
        Ok(is_its.then_some(&self.process))
    }
}

impl AsFd for Alleged {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

/// When a process began, in clock ticks since the system did; `None` when it is gone.
pub(crate) fn begun_at(pid: i32) -> io::Result<Option<u64>> {
    Ok(stat(pid, BEGUN)?.and_then(|begun| begun.try_into().ok()))
}

/// As which user a process was started or made one; `None` when it is gone, or that is root.
fn user(pid: i32) -> io::Result<Option<VmUid>> {
    let status = read(pid, "status")?;
    let uids = status.as_deref().and_then(|status| status.lines().find_map(|line| line.strip_prefix("Uid:")));
    let real = uids.and_then(|uids| uids.split_ascii_whitespace().next()?.parse().ok());
    Ok(real.and_then(VmUid::new))
}

/// What the system says of a process; `None` when it is gone.
fn read(pid: i32, file: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(format!("/proc/{pid}/{file}")) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A number that the system keeps of a process; `None` when it is gone.
fn stat(pid: i32, field: usize) -> io::Result<Option<i64>> {
    let Some(stat) = read(pid, "stat")? else { return Ok(None) };
    // The name in parentheses may hold anything, also blanks and parentheses.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace());
    Ok(fields.and_then(|mut fields| fields.nth(field)).and_then(|field| field.parse().ok()))
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
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(Process::open_child_of(own, pid).unwrap().is_some());
        assert!(
            Process::open_child_of(pid, own).unwrap().is_none() && Process::open_child_of(1, pid).unwrap().is_none()
        );
        assert!(Process::is_anothers(1, pid).unwrap() && !Process::is_anothers(own, pid).unwrap());
        process.kill().unwrap();
        assert!(process.wait(Instant::now() + Duration::from_secs(20)).unwrap());
        child.wait().unwrap();
        process.kill().unwrap();
        assert!(Process::open(pid).unwrap().is_none());
        assert_eq!(begun_at(pid).unwrap(), None);
    }

    #[test]
    fn who_is_only_said_to_be_a_child_is_not_ended() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(stranger.id()).unwrap();
        let uid = VmUid::new(2_000_100_002);
        let proven = |template, uid| Alleged::open(pid, template, uid).unwrap().unwrap().proven().unwrap().is_some();
        assert!(proven(own, uid), "it is a child of the template that says so");
        assert!(!proven(1, uid) && !proven(1, None), "somebody else's");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        // Of the user that the sandbox has, and so of the sandbox, whatever became of its template.
        let mut command = Command::new("sleep");
        let mut orphan = std::os::unix::process::CommandExt::uid(command.arg("1000"), 2_000_100_002).spawn().unwrap();
        let pid = i32::try_from(orphan.id()).unwrap();
        let alleged = Alleged::open(pid, 1, uid).unwrap().unwrap();
        alleged.proven().unwrap().unwrap().kill().unwrap();
        orphan.wait().unwrap();
    }

    #[test]
    fn who_listened_is_not_whoever_has_the_number() {
        let dir = tempfile::tempdir().unwrap();
        let listener = proto::control::listen(&dir.path().join("s")).unwrap();
        let caller = crate::caller::call(&dir.path().join("s")).unwrap().unwrap();
        assert!(Process::of_listener(&caller, None).unwrap().is_some());
        assert!(Process::of_listener(&caller, VmUid::new(2_000_100_002)).unwrap().is_none(), "this process is not it");
        drop(listener);
    }
}
