//! A client that follows a process: what is kept, what comes then, and its exit. The client's pace is its own.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use proto::codec::CodecError;
use proto::guest::Reply;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::process::{Next, Process};
use super::{ProcessError, Trouble};
use crate::console::say;
use crate::peer::{Peer, PeerError};

/// Sends all of it; returns with the exit sent.
pub(super) fn attach(peer: &mut Peer, process: &Process) -> Result<(), Trouble> {
    let watch = Watch::new(process).map_err(|source| ProcessError::System { id: process.id, source })?;
    peer.reply(&Reply::Process(process.info()))?;
    let mut place = 0;
    loop {
        watch.reset();
        match process.next(place) {
            Next::Piece(piece) => {
                if piece.skipped > 0 {
                    peer.queue_reply(&Reply::Skipped { bytes: piece.skipped })?;
                }
                peer.send_data(piece.channel, &piece.bytes)?;
                place = piece.next;
            }
            Next::Over { status, timed_out } => return Ok(peer.reply(&Reply::Exited { status, timed_out })?),
            Next::Nothing => watch.wait(peer)?,
        }
    }
}

/// A client's interest in a process.
struct Watch<'a> {
    process: &'a Process,
    changed: Arc<OwnedFd>,
}

impl<'a> Watch<'a> {
    fn new(process: &'a Process) -> std::io::Result<Self> {
        Ok(Self { process, changed: process.watch()? })
    }

    /// Before one looks: what changes after that is told again.
    fn reset(&self) {
        match rustix::io::read(&*self.changed, &mut [0; 8]) {
            // Nothing was told since the last time, which is as good.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => say(format_args!("process {}: {errno}", self.process.id)),
        }
    }

    /// Waits for a change, or the client's leaving.
    fn wait(&self, peer: &mut Peer) -> Result<(), PeerError> {
        let mut fds = [PollFd::new(&*peer, PollFlags::IN), PollFd::new(&*self.changed, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let client = !fds[0].revents().is_empty();
        if client {
            peer.take_in()?;
            if let Some(frame) = peer.buffered()? {
                return Err(CodecError::Unexpected { found: frame.channel }.into());
            }
        }
        Ok(())
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.process.unwatch(&self.changed);
    }
}
