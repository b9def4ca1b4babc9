//! One client's connection: frames in, frames out, never blocking unless asked to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use proto::codec::{Channel, CodecError, Decoder, Frame, write_frame, write_message};
use proto::guest::{ErrorCode, MAX_CHUNK, Reply};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use serde::Serialize;

/// How long a client that is told goodbye may take to listen.
const PARTING: Duration = Duration::from_secs(1);

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    #[error("the client went away")]
    Gone,
    #[error("the client said nothing in time")]
    Late,
    #[error(transparent)]
    Codec(#[from] CodecError),
}

impl From<Errno> for PeerError {
    fn from(_: Errno) -> Self {
        Self::Gone
    }
}

/// A connection.
pub(crate) struct Peer {
    fd: OwnedFd,
    decoder: Decoder,
    scratch: Box<[u8]>,
    outgoing: Vec<u8>,
    /// How much of `outgoing` is gone already.
    sent: usize,
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Peer {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let scratch = vec![0; MAX_CHUNK].into_boxed_slice();
        Ok(Self { fd, decoder: Decoder::default(), scratch, outgoing: Vec::new(), sent: 0 })
    }

    /// A frame that has already arrived.
    pub(crate) fn buffered(&mut self) -> Result<Option<Frame>, PeerError> {
        Ok(self.decoder.next_frame()?)
    }

    /// What has arrived behind the last frame, for a connection that carries frames no longer.
    pub(crate) fn take_rest(&mut self) -> Vec<u8> {
        self.decoder.take_rest()
    }

    /// Takes in what the socket has, once. To be called only when nothing is buffered: that bounds the buffer.
    pub(crate) fn take_in(&mut self) -> Result<(), PeerError> {
        match rustix::io::read(&self.fd, &mut *self.scratch) {
            Ok(0) => Err(PeerError::Gone),
            Ok(count) => {
                self.decoder.push(&self.scratch[..count]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Waits for a frame, until an instant if there is one.
    pub(crate) fn next_frame(&mut self, until: Option<Instant>) -> Result<Frame, PeerError> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            self.wait(PollFlags::IN, until)?;
            self.take_in()?;
        }
    }

    /// Puts a frame behind those that wait to be sent.
    pub(crate) fn queue(&mut self, channel: Channel, payload: &[u8]) -> Result<(), PeerError> {
        Ok(write_frame(&mut self.outgoing, channel, payload)?)
    }

    /// Puts a reply behind what waits to be sent.
    pub(crate) fn queue_reply(&mut self, reply: &Reply) -> Result<(), PeerError> {
        Ok(write_message(&mut self.outgoing, reply)?)
    }

    /// Puts bytes behind what waits to be sent, in as many frames as it takes.
    pub(crate) fn queue_data(&mut self, channel: Channel, bytes: &[u8]) -> Result<(), PeerError> {
        bytes.chunks(MAX_CHUNK).try_for_each(|chunk| self.queue(channel, chunk))
    }

    /// Sends bytes, in as many frames as it takes, and everything before them.
    pub(crate) fn send_data(&mut self, channel: Channel, bytes: &[u8]) -> Result<(), PeerError> {
        self.queue_data(channel, bytes)?;
        self.flush(None)
    }

    /// Sends any message and everything before it, until an instant.
    pub(crate) fn send(&mut self, message: &impl Serialize, until: Instant) -> Result<(), PeerError> {
        write_message(&mut self.outgoing, message)?;
        self.flush(Some(until))
    }

    /// How many bytes wait to be sent.
    pub(crate) const fn backlog(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Sends as much as the socket takes.
    pub(crate) fn send_some(&mut self) -> Result<(), PeerError> {
        while self.backlog() > 0 {
            match rustix::net::send(&self.fd, &self.outgoing[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        // Moving the rest is worth it only when there is more gone than left.
        if self.sent * 2 >= self.outgoing.len() {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Sends a reply and everything before it.
    pub(crate) fn reply(&mut self, reply: &Reply) -> Result<(), PeerError> {
        self.queue_reply(reply)?;
        self.flush(None)
    }

    /// Says why this is the end, gives the client a moment to read it, and closes.
    pub(crate) fn part(mut self, code: ErrorCode, message: String) {
        let until = Some(Instant::now() + PARTING);
        // Whatever fails here, the connection is closed next, which is all the client then sees.
        let told = self.queue_reply(&Reply::Error { code, message }).and_then(|()| self.flush(until));
        if told.is_ok() && rustix::net::shutdown(&self.fd, Shutdown::Write).is_ok() {
            // Closing while unread bytes wait would reset a TCP connection and could take the reply with it.
            while self.wait(PollFlags::IN, until).is_ok() {
                match rustix::io::read(&self.fd, &mut *self.scratch) {
                    Ok(0) | Err(_) => break,
                    Ok(_) => {}
                }
            }
        }
    }

    fn flush(&mut self, until: Option<Instant>) -> Result<(), PeerError> {
        loop {
            self.send_some()?;
            if self.backlog() == 0 {
                return Ok(());
            }
            self.wait(PollFlags::OUT, until)?;
        }
    }

    fn wait(&self, what: PollFlags, until: Option<Instant>) -> Result<(), PeerError> {
        loop {
            let left = until.map(time_left);
            match rustix::event::poll(&mut [PollFd::new(&self.fd, what)], left.as_ref()) {
                Ok(0) => return Err(PeerError::Late),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// How long it is until an instant, for poll.
pub(crate) fn time_left(until: Instant) -> Timespec {
    let left = until.saturating_duration_since(Instant::now());
    Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
}
