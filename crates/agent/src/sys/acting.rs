//! Touching files as somebody else.
//!
//! Only what the kernel checks of files changes, and only for this thread: the process stays root's to everybody who would
//! signal or trace it, and the thread can become itself again.

use std::io;

use rustix::thread::{Gid, Uid};

use super::Identity;

/// While this lives, its thread touches files as a user.
#[derive(Debug)]
pub(crate) struct Acting {
    groups: Vec<Gid>,
    /// It must end in the thread it began in.
    _stays: std::marker::PhantomData<*const ()>,
}

impl Acting {
    /// Becomes the user.
    pub(crate) fn begin(user: &Identity) -> io::Result<Self> {
        let groups = rustix::process::getgroups()?;
        rustix::thread::set_thread_groups(&user.groups)?;
        let acting = Self { groups, _stays: std::marker::PhantomData };
        set_fs_ids(user.uid, user.gid);
        if fs_uid() == user.uid.as_raw() { Ok(acting) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        set_fs_ids(rustix::process::geteuid(), rustix::process::getegid());
        if let Err(errno) = rustix::thread::set_thread_groups(&self.groups) {
            crate::console::say(format_args!("a thread keeps a user's groups: {errno}"));
        }
    }
}

/// The group first: who is not root any more may not change it.
fn set_fs_ids(uid: Uid, gid: Gid) {
    if uid.is_root() {
        // SAFETY: takes an integer, changes this thread only and returns what was before.
        unsafe { libc::setfsuid(uid.as_raw()) };
        // SAFETY: as above.
        unsafe { libc::setfsgid(gid.as_raw()) };
    } else {
        // SAFETY: as above.
        unsafe { libc::setfsgid(gid.as_raw()) };
        // SAFETY: as above.
        unsafe { libc::setfsuid(uid.as_raw()) };
    }
}

/// A number that is no user changes nothing and tells who it is.
fn fs_uid() -> u32 {
    // SAFETY: takes an integer, and refuses this one.
    unsafe { libc::setfsuid(u32::MAX) }.cast_unsigned()
}
