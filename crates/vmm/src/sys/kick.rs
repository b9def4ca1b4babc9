//! Getting a vCPU's thread out of KVM_RUN.
//!
//! A signal alone can come a moment too early, when the thread has decided to enter the guest but has not done so; it
//! would then be lost. So its handler sets the flag in the vCPU's shared page that makes the next KVM_RUN return at once.

use std::cell::Cell;
use std::io;
use std::os::unix::thread::{JoinHandleExt, RawPthread};
use std::ptr;
use std::thread::JoinHandle;

use kvm_ioctls::VcpuFd;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

thread_local! {
    /// The flag of this thread's vCPU. Has no destructor and no lazy beginning, so a handler may read it any time.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

extern "C" fn on_kick(_signal: libc::c_int, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let flag = IMMEDIATE_EXIT.get();
    if !flag.is_null() {
        // SAFETY: only `Kickable` sets it, on this very thread, and clears it before the page goes.
        unsafe { flag.write_volatile(1) };
    }
}

/// Makes kicks harmless to threads that run no vCPU. Once per process, before the first vCPU.
pub(crate) fn install() -> io::Result<()> {
    register_signal_handler(SIGRTMIN(), on_kick).map_err(io::Error::from)
}

/// This thread's vCPU, reachable by [`kick`] for as long as this lives.
#[derive(Debug)]
pub(crate) struct Kickable(());

impl Kickable {
    /// Announces the vCPU this thread runs.
    pub(crate) fn new(vcpu: &mut VcpuFd) -> Self {
        IMMEDIATE_EXIT.set(&raw mut vcpu.get_kvm_run().immediate_exit);
        Self(())
    }
}

impl Drop for Kickable {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.set(ptr::null_mut());
    }
}

/// Makes the thread's KVM_RUN return, the one under way or else the next.
pub(crate) fn kick(thread: &JoinHandle<()>) -> io::Result<()> {
    let thread: RawPthread = thread.as_pthread_t();
    // SAFETY: the handle is alive, so the thread was not joined and its id is valid, even if it has ended.
    match unsafe { libc::pthread_kill(thread, SIGRTMIN()) } {
        0 | libc::ESRCH => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
