//! One exec: moves bytes between a client and a process, in one thread, until the process has ended.
//!
//! ```text
//! client ──stdin──> pending (at most STDIN_WINDOW) ──> process
//!        <─credit── as the process takes it
//!        <─frames── outgoing (reads no more output above BACKLOG) <── stdout, stderr
//! ```
//!
//! The client's socket is always read, whatever the process or the client's own reading does: the window bounds what
//! stdin can pile up, so a signal never waits behind it. When the process ends, what is in its pipes at that moment is
//! sent and then its exit; a grandchild that keeps them open holds nobody up.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use proto::codec::{Channel, Frame};
use proto::guest::{ExecRequest, ExitStatus, MAX_CHUNK, Reply, Request, STDIN_WINDOW, Stdio, TtySize};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::children::Child;
use crate::peer::{Peer, PeerError, time_left};
use crate::stdio::{self, Ours};

/// With so much waiting for the client, no more is read from the process.
const BACKLOG: usize = 64 << 10;
/// What a person types to end the input of a terminal.
const END_OF_TRANSMISSION: u8 = 4;

/// Why a session ended without an exit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("{what}")]
    Protocol { what: String },
    #[error("{what}")]
    BadArgument { what: String },
    #[error("poll failed: {source}")]
    Poll { source: Errno },
}

/// A session under way.
pub(crate) struct Session<'a> {
    peer: &'a mut Peer,
    child: Child,
    stdin: Stdin,
    outputs: [Output; 2],
    terminal: Option<OwnedFd>,
    deadline: Option<Instant>,
    timed_out: bool,
    scratch: Box<[u8]>,
}

struct Output {
    channel: Channel,
    fd: Option<OwnedFd>,
}

#[derive(Default)]
struct Stdin {
    fd: Option<OwnedFd>,
    is_terminal: bool,
    pending: VecDeque<u8>,
    /// The client has said that there is no more.
    ended: bool,
    /// What the client sent and was not yet given credit for.
    uncredited: usize,
    /// The part of it the process took.
    taken: usize,
}

/// What poll found.
struct Ready {
    client: PollFlags,
    stdin: bool,
    outputs: [bool; 2],
}

impl<'a> Session<'a> {
    pub(crate) fn new(peer: &'a mut Peer, child: Child, ours: Ours, request: &ExecRequest) -> Self {
        let is_terminal = matches!(request.stdio, Stdio::Tty(_));
        let after = |ms| Instant::now().checked_add(Duration::from_millis(ms));
        Self {
            peer,
            child,
            stdin: Stdin { fd: ours.stdin, is_terminal, ..Stdin::default() },
            outputs: [
                Output { channel: Channel::Stdout, fd: ours.stdout },
                Output { channel: Channel::Stderr, fd: ours.stderr },
            ],
            terminal: ours.terminal,
            deadline: request.timeout_ms.and_then(after),
            timed_out: false,
            scratch: vec![0; MAX_CHUNK].into_boxed_slice(),
        }
    }

    /// Runs the session to its end; the exit has been sent when it returns. On an error the process group is dead.
    pub(crate) fn run(mut self) -> Result<(), SessionError> {
        let ended = self.attend().and_then(|status| self.conclude(status));
        if ended.is_err() {
            self.child.kill();
        }
        ended
    }

    /// While the process runs.
    fn attend(&mut self) -> Result<ExitStatus, SessionError> {
        self.peer.queue_reply(&Reply::Started { pid: self.child.pid() })?;
        self.peer.send_some()?;
        self.handle_buffered()?;
        loop {
            if let Some(status) = self.child.status() {
                return Ok(status);
            }
            let ready = self.wait()?;
            self.expire();
            self.serve_client(ready.client)?;
            if ready.stdin {
                self.stdin.feed();
            }
            for (index, ready) in ready.outputs.into_iter().enumerate() {
                if ready {
                    self.forward(index)?;
                }
            }
            self.grant()?;
            self.peer.send_some()?;
        }
    }

    /// After the process: what it left in its pipes, and its exit.
    fn conclude(&mut self, status: ExitStatus) -> Result<(), SessionError> {
        for index in 0..self.outputs.len() {
            let mut left = self.outputs[index].fd.as_ref().map_or(0, stdio::capacity);
            while left > 0 {
                self.wait_for_client(BACKLOG)?;
                match self.forward(index)? {
                    0 => break,
                    count => left = left.saturating_sub(count),
                }
            }
        }
        self.peer.queue_reply(&Reply::Exited { status, timed_out: self.timed_out })?;
        self.wait_for_client(1)
    }

    /// Serves the client until less than `backlog` bytes wait for it.
    fn wait_for_client(&mut self, backlog: usize) -> Result<(), SessionError> {
        self.peer.send_some()?;
        while self.peer.backlog() >= backlog {
            let mut fds = [PollFd::new(&*self.peer, PollFlags::IN | PollFlags::OUT)];
            poll(&mut fds, None)?;
            let ready = fds[0].revents();
            self.serve_client(ready)?;
        }
        Ok(())
    }

    /// Waits for something to do, or the deadline. A descriptor nothing is wanted from stays out of it: poll would
    /// report its hangup again and again.
    fn wait(&self) -> Result<Ready, SessionError> {
        let wants = if self.peer.backlog() > 0 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let room = self.peer.backlog() < BACKLOG;
        let stdin = self.stdin.fd.as_ref().filter(|_| !self.stdin.pending.is_empty());
        let outputs = self.outputs.each_ref().map(|output| output.fd.as_ref().filter(|_| room));
        let ended = self.child.ended_fd();
        let mut fds = vec![PollFd::new(&*self.peer, wants), PollFd::new(&ended, PollFlags::IN)];
        fds.extend(stdin.map(|fd| PollFd::new(fd, PollFlags::OUT)));
        fds.extend(outputs.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)));
        poll(&mut fds, self.deadline)?;
        let client = fds[0].revents();
        let mut rest = fds[2..].iter().map(PollFd::revents);
        let mut fired = |asked: bool| asked && rest.next().is_some_and(|flags| !flags.is_empty());
        Ok(Ready { client, stdin: fired(stdin.is_some()), outputs: outputs.map(|asked| fired(asked.is_some())) })
    }

    /// Kills the process group when its time is up.
    fn expire(&mut self) {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.deadline = None;
            self.timed_out = self.child.kill();
        }
    }

    fn serve_client(&mut self, ready: PollFlags) -> Result<(), SessionError> {
        if ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            self.peer.take_in()?;
            self.handle_buffered()?;
        }
        if ready.contains(PollFlags::OUT) {
            self.peer.send_some()?;
        }
        Ok(())
    }

    fn handle_buffered(&mut self) -> Result<(), SessionError> {
        while let Some(frame) = self.peer.buffered()? {
            self.handle(&frame)?;
        }
        Ok(())
    }

    fn handle(&mut self, frame: &Frame) -> Result<(), SessionError> {
        match frame.channel {
            Channel::Stdin => self.stdin.accept(&frame.payload),
            Channel::Message => match frame.message().map_err(PeerError::from)? {
                Request::Signal { signal } => self.signal(signal),
                Request::Resize(size) => self.resize(size),
                request => Err(SessionError::Protocol { what: format!("{request:?} came inside a session") }),
            },
            found => Err(SessionError::Protocol { what: format!("a client does not send {found:?}") }),
        }
    }

    fn signal(&self, signal: i32) -> Result<(), SessionError> {
        let refused = |what| SessionError::BadArgument { what };
        if !(1..=64).contains(&signal) {
            return Err(refused(format!("{signal} is not a signal; they go from 1 to 64")));
        }
        match self.child.signal_group(signal) {
            Ok(_) => Ok(()),
            Err(error) => Err(refused(format!("signal {signal} cannot be sent: {error}"))),
        }
    }

    fn resize(&self, size: TtySize) -> Result<(), SessionError> {
        let refused = |what| SessionError::BadArgument { what };
        let terminal = self.terminal.as_ref().ok_or_else(|| refused("the process has no terminal to resize".into()))?;
        stdio::resize(terminal, size).map_err(|error| refused(format!("the terminal cannot be resized: {error}")))
    }

    /// Reads an output once and passes it on; how much it was. At its end the output is closed.
    fn forward(&mut self, index: usize) -> Result<usize, SessionError> {
        let output = &mut self.outputs[index];
        let Some(fd) = &output.fd else { return Ok(0) };
        match rustix::io::read(fd, &mut *self.scratch) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Ok(0) | Err(_) => {
                output.fd = None;
                self.peer.queue(output.channel, &[])?;
                Ok(0)
            }
            Ok(count) => {
                self.peer.queue(output.channel, &self.scratch[..count])?;
                Ok(count)
            }
        }
    }

    /// Tells the client how much the process took, unless the client is too far behind to hear it now.
    fn grant(&mut self) -> Result<(), SessionError> {
        if self.stdin.taken > 0 && self.peer.backlog() < 2 * BACKLOG {
            let bytes = std::mem::take(&mut self.stdin.taken);
            self.stdin.uncredited -= bytes;
            self.peer.queue_reply(&Reply::StdinCredit { bytes: bytes as u64 })?;
        }
        Ok(())
    }
}

impl Stdin {
    /// Takes bytes from the client.
    fn accept(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let refused = |what: &str| Err(SessionError::Protocol { what: what.into() });
        if bytes.is_empty() {
            self.end();
            return Ok(());
        }
        if self.ended {
            return refused("stdin went on after its end");
        }
        if self.uncredited + bytes.len() > STDIN_WINDOW {
            return refused("more stdin came than the window allows");
        }
        self.uncredited += bytes.len();
        if self.fd.is_some() {
            self.pending.extend(bytes);
        } else {
            // Nobody reads it. Credit lets the client come to its end instead of waiting for ever.
            self.took(bytes.len());
        }
        Ok(())
    }

    /// Nothing more will come. A pipe can be closed; at a terminal the end has to be typed.
    fn end(&mut self) {
        if self.is_terminal && self.fd.is_some() && !self.ended {
            self.pending.push_back(END_OF_TRANSMISSION);
        }
        self.ended = true;
        self.close_if_done();
    }

    /// Gives the process as much as it takes now.
    fn feed(&mut self) {
        let Some(fd) = &self.fd else { return };
        match rustix::io::write(fd, self.pending.as_slices().0) {
            Ok(count) => {
                self.pending.drain(..count);
                self.took(count);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The process has closed its end: the rest goes where it would have gone.
            Err(_) => {
                self.fd = None;
                self.took(self.pending.len());
                self.pending.clear();
            }
        }
        self.close_if_done();
    }

    fn close_if_done(&mut self) {
        if self.ended && self.pending.is_empty() {
            self.fd = None;
        }
    }

    /// What was typed in the client's name is not the client's to be credited.
    fn took(&mut self, count: usize) {
        self.taken = self.uncredited.min(self.taken + count);
    }
}

fn poll(fds: &mut [PollFd<'_>], until: Option<Instant>) -> Result<(), SessionError> {
    let left = until.map(time_left);
    match rustix::event::poll(fds, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(source) => Err(SessionError::Poll { source }),
    }
}
