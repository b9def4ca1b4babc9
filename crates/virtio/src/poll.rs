//! Watching host descriptors on a loop that somebody else runs.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// What a device wants to know about a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// When it can be read.
    Read,
    /// When it can be written.
    Write,
    /// Either.
    ReadWrite,
    /// Neither: only when its other end is gone, which is told in any case.
    Hangup,
}

impl Interest {
    /// The interest in the wanted directions, if either is wanted.
    pub(crate) const fn in_either((read, write): (bool, bool)) -> Option<Self> {
        match (read, write) {
            (true, true) => Some(Self::ReadWrite),
            (true, false) => Some(Self::Read),
            (false, true) => Some(Self::Write),
            (false, false) => None,
        }
    }
}

/// What is true of a descriptor now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "three independent facts, as the kernel reports them")]
pub struct Readiness {
    /// It can be read without waiting.
    pub readable: bool,
    /// It can be written without waiting.
    pub writable: bool,
    /// Its other end is gone, or it is in an error state.
    pub hangup: bool,
}

/// A level-triggered loop. Each transport has its own numbering of tokens; the loop hands a token back through
/// [`MmioTransport::host_ready`](crate::MmioTransport::host_ready).
///
/// Called from vCPU threads as well as from the loop's own, with the transport locked: an implementation must not take
/// that lock.
pub trait Poller: Send + Sync + Debug {
    /// Begins to watch.
    ///
    /// # Errors
    /// When the descriptor cannot be watched.
    fn add(&self, fd: BorrowedFd<'_>, token: u32, interest: Interest) -> io::Result<()>;

    /// Changes what is watched for.
    ///
    /// # Errors
    /// When the descriptor is not watched.
    fn modify(&self, fd: BorrowedFd<'_>, token: u32, interest: Interest) -> io::Result<()>;

    /// Ends watching.
    ///
    /// # Errors
    /// When the descriptor is not watched.
    fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()>;
}

/// The registration of one descriptor: makes a call only when the wish changes.
///
/// Not undone on drop: after a `fork(2)` both processes share the loop's epoll instance, and a child that drops its
/// copy must not deregister its parent's. In one process, closing the descriptor ends the registration anyway.
#[derive(Debug)]
pub(crate) struct Watch {
    poller: Arc<dyn Poller>,
    token: u32,
    current: Option<Interest>,
}

impl Watch {
    pub(crate) fn new(poller: Arc<dyn Poller>, token: u32) -> Self {
        Self { poller, token, current: None }
    }

    pub(crate) fn set(&mut self, fd: BorrowedFd<'_>, wanted: Option<Interest>) -> io::Result<()> {
        match (self.current, wanted) {
            (now, then) if now == then => return Ok(()),
            (None, Some(interest)) => self.poller.add(fd, self.token, interest)?,
            (Some(_), Some(interest)) => self.poller.modify(fd, self.token, interest)?,
            (_, None) => self.poller.remove(fd)?,
        }
        self.current = wanted;
        Ok(())
    }
}
