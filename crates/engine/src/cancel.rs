//! A request to give up, from another thread, that a wait can poll for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::EventfdFlags;

/// Shared by the one who waits and the one who may call it off; stays cancelled.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<OwnedFd>);

impl Cancel {
    /// Not cancelled.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Wakes every wait, now and later.
    pub fn cancel(&self) {
        // Fails only when the counter is full, and then it is readable as it should be.
        if let Err(error) = rustix::io::write(&*self.0, &1_u64.to_ne_bytes()) {
            log::debug!("cancelled many times: {error}");
        }
    }
}

impl AsFd for Cancel {
    /// Readable once cancelled.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
