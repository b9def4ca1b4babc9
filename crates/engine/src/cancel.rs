//! A request to give up, from another thread, that a wait can poll for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use crate::process::timespec;

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

    /// Waits until it is cancelled; false when the time is up before.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub fn wait(&self, until: Instant) -> io::Result<bool> {
        Ok(Self::first(&[Some(self)], until)?.is_some())
    }

    /// Waits for the first of these to be cancelled and says which; `None` when the time is up before.
    pub(crate) fn first(these: &[Option<&Self>], until: Instant) -> io::Result<Option<usize>> {
        let present = || these.iter().enumerate().filter_map(|(index, cancel)| Some((index, (*cancel)?)));
        loop {
            let mut fds: Vec<_> = present().map(|(_, cancel)| PollFd::new(cancel, PollFlags::IN)).collect();
            let left = timespec(until.saturating_duration_since(Instant::now()));
            match rustix::event::poll(&mut fds, Some(&left)) {
                Ok(0) => return Ok(None),
                Ok(_) => {
                    let fired = fds.iter().position(|fd| !fd.revents().is_empty());
                    return Ok(fired.and_then(|fired| present().nth(fired)).map(|(index, _)| index));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Cancel {
    /// Readable once cancelled.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_that_is_cancelled_ends_the_wait() {
        let (one, two) = (Cancel::new().unwrap(), Cancel::new().unwrap());
        let these = [Some(&one), None, Some(&two)];
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(Cancel::first(&these, soon).unwrap(), None);
        assert!(Instant::now() >= soon);
        two.clone().cancel();
        assert_eq!(Cancel::first(&these, Instant::now() + Duration::from_secs(20)).unwrap(), Some(2));
    }
}
