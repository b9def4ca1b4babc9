//! A connection that becomes one to somebody else in the guest.
//!
//! ```text
//! client ──> towards ──> server          each direction has a buffer of its own and ends by itself: the end of one
//! client <── back    <── server          side's bytes is passed on, and what the other side still says comes through
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use proto::guest::{DialTarget, ErrorCode, Reply};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use crate::files::code_of;
use crate::peer::{Peer, PeerError};

/// How long a server may take to let somebody in.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is under way in each direction.
const BUFFER: usize = 64 << 10;

/// Why nobody was reached.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("cannot connect to {to}: {source}")]
    Connect { to: String, source: io::Error },
    #[error("{address} is not an address of this guest")]
    NotHere { address: IpAddr },
}

impl DialError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Connect { source, .. } if source.kind() == io::ErrorKind::TimedOut => ErrorCode::Timeout,
            Self::Connect { source, .. } => code_of(source),
            Self::NotHere { .. } => ErrorCode::BadArgument,
        }
    }
}

/// What became of the client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Dialled {
    /// It had its connection, and that is over; so is the client's.
    Over,
    /// It was told why there is none.
    Refused,
}

/// Connects, and moves bytes until both sides have ended.
pub(crate) fn dial(peer: &mut Peer, to: &DialTarget) -> Result<Dialled, PeerError> {
    match connect(to) {
        Ok(server) => {
            peer.reply(&Reply::Done)?;
            let early = peer.take_rest();
            relay(peer.as_fd(), server.as_fd(), early)?;
            Ok(Dialled::Over)
        }
        Err(error) => {
            peer.reply(&Reply::Error { code: error.code(), message: error.to_string() })?;
            Ok(Dialled::Refused)
        }
    }
}

fn connect(to: &DialTarget) -> Result<OwnedFd, DialError> {
    let failed = |to: String| move |source| DialError::Connect { to, source };
    match to {
        DialTarget::Unix { path } => connect_unix(path.as_str()).map_err(failed(path.to_string())),
        DialTarget::Tcp { address: Some(address), port } => {
            // Only what is the guest's own can be bound to.
            if TcpListener::bind((*address, 0)).is_err() {
                return Err(DialError::NotHere { address: *address });
            }
            connect_tcp(*address, *port).map_err(failed(format!("{address}, port {port}")))
        }
        DialTarget::Tcp { address: None, port } => {
            let first = connect_tcp(Ipv4Addr::LOCALHOST.into(), *port);
            // What is wrong with the first says more than a guest without IPv6.
            let second = first.or_else(|error| connect_tcp(Ipv6Addr::LOCALHOST.into(), *port).map_err(|_| error));
            second.map_err(failed(format!("port {port}")))
        }
    }
}

fn connect_tcp(address: IpAddr, port: u16) -> io::Result<OwnedFd> {
    let stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream.into())
}

fn connect_unix(path: &str) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Also bounds how long a full queue of others is waited for.
    set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// One direction.
struct Way<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    /// What waits to be sent, from `sent` on.
    bytes: Vec<u8>,
    sent: usize,
    ended: bool,
    over: bool,
}

impl<'a> Way<'a> {
    const fn new(from: BorrowedFd<'a>, to: BorrowedFd<'a>, bytes: Vec<u8>) -> Self {
        Self { from, to, bytes, sent: 0, ended: false, over: false }
    }

    const fn waits(&self) -> bool {
        self.sent < self.bytes.len()
    }

    /// What to wait for.
    fn wanted(&self) -> Option<PollFd<'_>> {
        if self.over {
            None
        } else if self.waits() {
            Some(PollFd::new(&self.to, PollFlags::OUT))
        } else {
            Some(PollFd::new(&self.from, PollFlags::IN))
        }
    }

    /// Moves what can be moved now.
    fn step(&mut self) -> Result<(), Errno> {
        if !self.waits() && !self.ended {
            self.bytes.resize(BUFFER, 0);
            self.sent = 0;
            let read = rustix::io::read(self.from, &mut self.bytes[..]);
            self.bytes.truncate(*read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => self.ended = true,
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        while self.waits() {
            match rustix::net::send(self.to, &self.bytes[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        if self.ended && !self.over {
            self.over = true;
            match rustix::net::shutdown(self.to, Shutdown::Write) {
                // It ended at the same time.
                Ok(()) | Err(Errno::NOTCONN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Moves bytes both ways. A side that breaks ends both, as it would without anybody between.
fn relay(client: BorrowedFd<'_>, server: BorrowedFd<'_>, early: Vec<u8>) -> Result<(), PeerError> {
    let mut ways = [Way::new(client, server, early), Way::new(server, client, Vec::new())];
    while ways.iter().any(|way| !way.over) {
        let ready = wait(&ways)?;
        if ready.gone {
            return Ok(());
        }
        for (way, ready) in ways.iter_mut().zip(ready.ways) {
            if ready {
                way.step()?;
            }
        }
    }
    Ok(())
}

/// What poll found.
struct Ready {
    ways: [bool; 2],
    /// Who had ended its half has left altogether, and what is still said is said to nobody.
    gone: bool,
}

fn wait(ways: &[Way<'_>; 2]) -> Result<Ready, Errno> {
    let mut fds: Vec<_> = ways.iter().filter_map(Way::wanted).collect();
    let moving = fds.len();
    fds.extend(ways.iter().filter(|way| way.over).map(|way| PollFd::new(&way.from, PollFlags::empty())));
    match rustix::event::poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    let mut fired = fds.iter().map(|fd| !fd.revents().is_empty());
    let ready = ways.each_ref().map(|way| !way.over && fired.next().unwrap_or(false));
    let gone = fds[moving..].iter().any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR));
    Ok(Ready { ways: ready, gone })
}
