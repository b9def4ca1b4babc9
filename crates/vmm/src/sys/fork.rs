//! `fork(2)`, from a process in which nothing else moves, and what a copy must let go of.
//!
//! A copy of a process has its one thread that forked, and every lock that others held. So whoever forks is either
//! [`alone`], or has parked all other threads where they hold none (see [`crate::parking`]).

use std::io;
use std::os::fd::RawFd;

use kvm_ioctls::{VcpuFd, VmFd};
use rustix::process::Pid;

/// Which of the two one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forked {
    /// The one that called; the child's number.
    Parent(Pid),
    /// The new one.
    Child,
}

/// Says whether this thread is the process's only one. The system refuses to let a thread leave its process unless it is
/// alone in it, and then has nothing to do.
pub(crate) fn alone() -> io::Result<bool> {
    // SAFETY: nothing changes, whatever the answer is.
    match unsafe { libc::unshare(libc::CLONE_THREAD) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            error => Err(error),
        },
    }
}

unsafe extern "C" {
    /// The C library's `fork` without what makes it safe for other threads' locks: those handlers only touch, and thereby
    /// copy, a dozen pages in parent and child.
    fn _Fork() -> libc::pid_t;
}

/// Makes a copy of this process. Nothing else in it may move meanwhile, or hold a lock.
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: by contract no other thread runs or holds a lock, so nothing is left half-done or locked in the child.
    match unsafe { _Fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Pid::from_raw(pid).map(Forked::Parent).ok_or_else(|| io::Error::other("the child has no number")),
    }
}

/// Lets the system forget this process's children as they end: nobody waits for them.
pub(crate) fn forget_children() -> io::Result<()> {
    // SAFETY: an ignored signal has no handler that could run.
    match unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Keeps the page that a vCPU shares with KVM out of copies of this process. One that had it would hold on to the whole
/// VM, its source's memory included, after the source is gone.
pub(crate) fn withhold(vcpu: &mut VcpuFd, vm: &VmFd) -> io::Result<()> {
    let page: *mut libc::c_void = std::ptr::from_mut(vcpu.get_kvm_run()).cast();
    // SAFETY: KVM mapped so many bytes there; what is said about them concerns copies only.
    match unsafe { libc::madvise(page, vm.run_size(), libc::MADV_DONTFORK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes every descriptor but these, standard output and standard error. Whatever else owns one must never be used or
/// dropped again: its number may soon be another file's.
pub(crate) fn close_all_but(keep: &[RawFd]) -> io::Result<()> {
    let standard = [libc::STDOUT_FILENO, libc::STDERR_FILENO];
    let mut keep: Vec<u32> = keep.iter().copied().chain(standard).map(i32::unsigned_abs).collect();
    keep.sort_unstable();
    let mut from = 0;
    for kept in keep {
        if kept > from {
            close_range(from, kept - 1)?;
        }
        from = from.max(kept + 1);
    }
    close_range(from, u32::MAX)
}

fn close_range(from: u32, to: u32) -> io::Result<()> {
    // SAFETY: by the contract above nobody uses what is closed here.
    match unsafe { libc::close_range(from, to, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::mem::ManuallyDrop;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    use super::*;

    /// Run by the test below in a process of its own. By itself it does nothing.
    #[test]
    fn process_that_closes() {
        if std::env::var_os("VMM_CLOSES").is_none() {
            return;
        }
        let files: Vec<File> = (0..5).map(|_| File::open("/dev/zero").unwrap()).collect();
        let files = ManuallyDrop::new(files);
        close_all_but(&[files[3].as_raw_fd(), files[1].as_raw_fd()]).unwrap();
        let open = |fd: i32| rustix::fs::stat(format!("/proc/self/fd/{fd}")).is_ok();
        assert_eq!([0, 1, 2].map(open), [false, true, true]);
        let left: Vec<bool> = files.iter().map(|file| open(file.as_raw_fd())).collect();
        assert_eq!(left, [false, true, false, true, false]);
    }

    #[test]
    fn all_is_closed_but_what_is_kept() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sys::fork::tests::process_that_closes", "--test-threads", "1"])
            .env("VMM_CLOSES", "1")
            .output()
            .unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    }
}
