//! What the libraries do when it is first needed, done before anything else is.

use std::io;
use std::thread;
use std::time::Duration;

use crate::sys::fork;

/// How many milliseconds a thread that is over may stay.
const PATIENCE: u32 = 1000;

/// The first look at the clock has a library find out where the kernel answers without a system call.
pub(crate) fn clock() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    log::trace!("{} s after the host began", now.tv_sec);
}

/// The first thread of a process makes the libraries look up and set up what all later ones use. Done here, no child has
/// to, and none could that is confined; and the thread's stack stays behind for the child's own first thread.
pub(crate) fn threads() -> io::Result<()> {
    if thread::Builder::new().spawn(|| {})?.join().is_err() {
        log::warn!("a thread that does nothing failed");
    }
    // It is over, but the system may still be about to forget it.
    for _ in 0..PATIENCE {
        if fork::alone()? {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(io::Error::other("a thread that is over does not go"))
}
