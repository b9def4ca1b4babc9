//! `fork(2)`, from a process with a single thread.

use std::io;

use rustix::process::Pid;

/// Which of the two one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forked {
    /// The one that called; the child's number.
    Parent(Pid),
    /// The new one.
    Child,
}

/// Says whether this thread is the process's only one. A copy of a process has no other thread of it, but every lock they
/// held; so whoever forks makes sure first.
pub(crate) fn alone() -> io::Result<bool> {
    Ok(std::fs::read_dir("/proc/self/task")?.take(2).count() == 1)
}

unsafe extern "C" {
    /// The C library's `fork` without what makes it safe for other threads' locks: those handlers only touch, and thereby
    /// copy, a dozen pages in parent and child.
    fn _Fork() -> libc::pid_t;
}

/// Makes a copy of this process, which must be [`alone`].
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: by contract this is the only thread, so nothing is left half-done or locked in the child.
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
