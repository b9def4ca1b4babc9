//! The one thing that has no safe name in the standard library: a child in a session of its own.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The child begins a new session, out of reach of the terminal's signals and its end.
pub(crate) fn in_own_session(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec and only makes the system call `setsid`, which neither allocates
    // nor takes a lock.
    unsafe { command.pre_exec(|| rustix::process::setsid().map(|_| ()).map_err(Into::into)) };
}
