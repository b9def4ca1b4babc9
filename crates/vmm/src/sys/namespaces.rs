//! Namespaces of one's own.

use std::io;

/// Leaves the host's mounts, network and shared memory. This process must have one thread.
pub(crate) fn unshare_host() -> io::Result<()> {
    // SAFETY: what a thread shares with none is only its own to change; memory stays as it is.
    match unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
