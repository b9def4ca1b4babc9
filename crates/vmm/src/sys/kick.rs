//! Getting a vCPU's thread out of KVM_RUN.
//!
//! A signal alone can come a moment too early, when the thread has decided to enter the guest but has not done so; it
//! would then be lost. So its handler sets the flag in the vCPU's shared page that makes the next KVM_RUN return at once.
//!
//! The signal is that of a timer which is over at once. A timer reaches the threads of its own process only, which is for
//! the kernel to see to; a system call that sends signals would reach whoever is of the same user, and a filter, which is
//! inherited, cannot tell one's own number from another's.

use std::cell::Cell;
use std::io;
use std::mem;
use std::ptr;

use kvm_ioctls::VcpuFd;
use rustix::thread::Pid;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

/// As soon as a timer can be over.
const AT_ONCE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1 };
/// Not again.
const NEVER: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };

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

/// This thread's vCPU, reachable by a [`Kick`] for as long as this lives.
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

/// Makes a thread's KVM_RUN return, the one under way or else the next; in a moment, if this lives so long.
#[derive(Debug)]
pub(crate) struct Kick {
    timer: libc::timer_t,
}

impl Kick {
    /// For a thread of this process. One that is over needs none.
    pub(crate) fn give(thread: Pid) -> io::Result<Option<Self>> {
        // SAFETY: it is made of numbers and pointers, all of which can be zero.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGRTMIN();
        event.sigev_notify_thread_id = thread.as_raw_nonzero().get();
        let mut timer = ptr::null_mut();
        // SAFETY: both are there for as long as the call takes.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) } != 0 {
            let error = io::Error::last_os_error();
            // What else could be wrong with these arguments is not.
            return if error.raw_os_error() == Some(libc::EINVAL) { Ok(None) } else { Err(error) };
        }
        let kick = Self { timer };
        let when = libc::itimerspec { it_interval: NEVER, it_value: AT_ONCE };
        // SAFETY: the timer was just made, and the time is there for as long as the call takes.
        match unsafe { libc::timer_settime(kick.timer, 0, &raw const when, ptr::null_mut()) } {
            0 => Ok(Some(kick)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Kick {
    fn drop(&mut self) {
        // SAFETY: the timer was made by this, and nobody else has it.
        if unsafe { libc::timer_delete(self.timer) } != 0 {
            log::warn!("a timer stays: {}", io::Error::last_os_error());
        }
    }
}
