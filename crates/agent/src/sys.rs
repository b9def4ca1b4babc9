//! Every unsafe operation of the agent: process creation, signals, acting as a user, and the ioctls of the network card, of the kernel's
//! random number generator and of KVM.

use std::ffi::{CString, c_char, c_int};
use std::io;

mod acting;
mod kvm;
mod netif;
mod process;
mod random;

pub(crate) use acting::Acting;
pub(crate) use kvm::SleepingVcpu;
pub(crate) use netif::Interface;
pub(crate) use process::{Failure, Identity, Plan, Stage, fork_exec};
pub(crate) use random::reseed;

/// Strings the way `execve` wants them: pointers with a null at the end, and what they point to.
pub(crate) struct CStrings {
    pointers: Vec<*const c_char>,
    _owned: Vec<CString>,
}

impl CStrings {
    /// Moving a `CString` does not move its bytes, so the pointers stay good as long as this lives.
    pub(crate) fn new(owned: Vec<CString>) -> Self {
        let pointers = owned.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Self { pointers, _owned: owned }
    }

    const fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// Sends a signal to a whole process group.
pub(crate) fn kill_group(group: i32, signal: i32) -> io::Result<()> {
    // Zero and one would mean our own group and everybody.
    if group <= 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    kill(-group, signal)
}

/// Sends a signal to every process but ourselves and kernel threads. Only PID 1 of a machine may want that.
pub(crate) fn kill_everybody(signal: i32) -> io::Result<()> {
    kill(-1, signal)
}

fn kill(target: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two integers and touches no memory of ours.
    check(unsafe { libc::kill(target, signal) })
}

fn check(result: c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
