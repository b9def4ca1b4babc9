//! Out of the host's files, network and shared memory, into a root directory in which there is nothing.

use rustix::fs::CWD;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use super::{JailError, privilege};
use crate::sys::namespaces;

/// A directory that every host has. It is covered in this process's namespace only, and gone with it.
const ANYWHERE: &str = "/proc";
/// Room for the directory itself and for nothing in it.
const EMPTY: &std::ffi::CStr = c"size=4k,nr_inodes=1,mode=0555";

/// Enters namespaces of its own, and leaves an empty directory that cannot be written to as all there is.
pub(super) fn leave_the_host() -> Result<(), JailError> {
    let failed = privilege("empty root");
    namespaces::unshare_host().map_err(|source| JailError::Privilege { layer: "namespaces", source })?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).map_err(&failed)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("forkd", ANYWHERE, "tmpfs", flags, EMPTY).map_err(&failed)?;
    rustix::process::chdir(ANYWHERE).map_err(&failed)?;
    // The old root then lies over the new one, from where it is taken off with all that is mounted below it.
    rustix::process::pivot_root(".", ".").map_err(&failed)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(&failed)?;
    rustix::process::chdir("/").map_err(&failed)?;
    rustix::mount::mount_remount("/", flags | MountFlags::RDONLY, EMPTY).map_err(&failed)?;
    debug_assert!(rustix::fs::statat(CWD, ANYWHERE, rustix::fs::AtFlags::empty()).is_err(), "the root is not empty");
    Ok(())
}
