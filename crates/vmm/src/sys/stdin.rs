//! The control socket, which the engine hands over as standard input.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes descriptor 0 as our own; only the first caller gets it.
pub(crate) fn take() -> Option<OwnedFd> {
    if TAKEN.swap(true, Ordering::SeqCst) {
        return None;
    }
    // SAFETY: the process starts with 0 open (Rust's runtime opens /dev/null there otherwise), nothing in this program
    // uses `std::io::stdin`, and `TAKEN` makes us the only owner.
    Some(unsafe { OwnedFd::from_raw_fd(0) })
}
