//! Listening, greeting, and one thread per client.
//!
//! ```text
//! accept ──> Hello within GREETING, token where one is needed ──> requests, one at a time
//! ```

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use proto::codec::{Channel, Frame};
use proto::guest::{AgentHello, ErrorCode, EvalRequest, ExecRequest, GENERATION, Reply, Request, SHOWN_SINCE};
use vsock::{VMADDR_CID_HOST, VsockListener};

use crate::console::say;
use crate::dial::{Dialled, dial};
use crate::files;
use crate::interpreter::WarmInterpreter;
use crate::launch::Launcher;
use crate::peer::{Peer, PeerError};
use crate::processes::Processes;
use crate::renew::Renewer;
use crate::session::{Session, SessionError};

/// How long a client may take to say hello.
const GREETING: Duration = Duration::from_secs(10);
/// More clients at once are turned away.
const MAX_CONNECTIONS: usize = 1024;
/// The pause after an accept that failed, most likely for want of descriptors.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Sessions use little stack, and there may be many.
pub(crate) const STACK: usize = 256 << 10;

/// Where clients come from.
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
    Vsock(VsockListener),
}

impl Listener {
    /// The next client; `None` for one that has no business here.
    fn accept(&self) -> io::Result<Option<OwnedFd>> {
        Ok(match self {
            Self::Unix(listener) => Some(listener.accept()?.0.into()),
            Self::Tcp(listener) => {
                let stream = listener.accept()?.0;
                stream.set_nodelay(true)?;
                Some(stream.into())
            }
            // Only the host may command a guest; with the loopback transport any user of the guest could connect.
            Self::Vsock(listener) => {
                let (stream, address) = listener.accept()?;
                (address.cid() == VMADDR_CID_HOST).then(|| stream.into())
            }
        })
    }
}

/// What a client asked of the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Poweroff,
    Reboot,
}

/// What every connection shares.
pub(crate) struct Host {
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) interpreter: Arc<WarmInterpreter>,
    pub(crate) renewer: Renewer,
    pub(crate) processes: Processes,
    /// What a client must know; nothing where the transport already proves who it is.
    pub(crate) token: Option<String>,
    pub(crate) hello: AgentHello,
    pub(crate) stop: Sender<Stop>,
}

/// Accepts clients for ever.
pub(crate) fn serve(listener: &Listener, host: &Arc<Host>) {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let accepted = listener.accept().and_then(|client| client.map(Peer::new).transpose());
        let peer = match accepted {
            Ok(Some(peer)) => peer,
            Ok(None) => continue,
            Err(error) => {
                say(format_args!("cannot accept a client: {error}"));
                thread::sleep(ACCEPT_RETRY);
                continue;
            }
        };
        let place = Place::take(&connections, MAX_CONNECTIONS);
        let host = Arc::clone(host);
        let converse = move || match place {
            Some(place) => {
                converse(peer, &host);
                drop(place);
            }
            None => peer.part(ErrorCode::Failed, format!("{MAX_CONNECTIONS} clients are connected already")),
        };
        // A client without a thread is dropped with its closure, and sees its connection close.
        if let Err(error) = thread::Builder::new().name("client".into()).stack_size(STACK).spawn(converse) {
            say(format_args!("cannot serve a client: {error}"));
        }
    }
}

/// One of the connections there may be.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    /// Unless there are so many already.
    pub(crate) fn take(count: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let place = Self(Arc::clone(count));
        (count.fetch_add(1, Ordering::Relaxed) < most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a conversation ended before the client left.
#[derive(Debug, thiserror::Error)]
enum ConverseError {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("{message}")]
    Refused { code: ErrorCode, message: String },
}

impl ConverseError {
    fn protocol(message: impl Into<String>) -> Self {
        Self::Refused { code: ErrorCode::Protocol, message: message.into() }
    }
}

/// Serves one client to its end.
pub(crate) fn converse(mut peer: Peer, host: &Host) {
    let ended = greet(&mut peer, host).and_then(|generation| obey(&mut peer, host, generation));
    match ended {
        Ok(()) | Err(ConverseError::Peer(PeerError::Gone)) => {}
        Err(ConverseError::Peer(error)) => peer.part(ErrorCode::Protocol, error.to_string()),
        Err(ConverseError::Refused { code, message }) => peer.part(code, message),
    }
}

/// Agrees on the generation that is spoken from here on.
fn greet(peer: &mut Peer, host: &Host) -> Result<u16, ConverseError> {
    let frame = peer.next_frame(Some(Instant::now() + GREETING))?;
    let (generation, token) = match frame.message().map_err(PeerError::from)? {
        Request::Hello { generation: 0, .. } => return Err(ConverseError::protocol("there is no generation 0")),
        Request::Hello { generation, token } => (generation, token),
        _ => return Err(ConverseError::protocol("a connection begins with hello")),
    };
    if let Some(wanted) = &host.token
        && !token.is_some_and(|token| same(token.as_bytes(), wanted.as_bytes()))
    {
        let message = "the token is missing or wrong".into();
        return Err(ConverseError::Refused { code: ErrorCode::Denied, message });
    }
    let generation = generation.min(GENERATION);
    peer.reply(&Reply::Hello(AgentHello { generation, ..host.hello.clone() }))?;
    Ok(generation)
}

/// Compares in a time that says nothing about where the difference is.
fn same(one: &[u8], two: &[u8]) -> bool {
    let difference = one.iter().zip(two).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
    one.len() == two.len() && difference == 0
}

/// Requests until the client leaves, or has the machine stopped.
fn obey(peer: &mut Peer, host: &Host, generation: u16) -> Result<(), ConverseError> {
    let mut had_session = false;
    loop {
        let frame = peer.next_frame(None)?;
        // What was meant for a session can cross its end on the way.
        if had_session && frame.channel == Channel::Stdin {
            continue;
        }
        match frame.message().map_err(PeerError::from)? {
            Request::Signal { .. } | Request::Resize(_) if had_session => {}
            Request::Ping => peer.reply(&Reply::Done)?,
            Request::Exec(request) => {
                had_session = true;
                exec(peer, host, &request)?;
            }
            Request::Renew(request) => {
                let renewed = host.renewer.renew(&request).map(Reply::Renewed);
                peer.reply(&renewed.unwrap_or_else(|error| refusal(ErrorCode::Failed, &error)))?;
            }
            Request::SetClock { unix_ns } => {
                let set = host.renewer.set_clock(unix_ns).map(|()| Reply::Done);
                peer.reply(&set.unwrap_or_else(|error| refusal(ErrorCode::Failed, &error)))?;
            }
            Request::Warm(request) => {
                let warmed = host.interpreter.warm(&request).map(Reply::Warmed);
                peer.reply(&warmed.unwrap_or_else(|error| refusal(error.code(), &error)))?;
            }
            Request::Eval(request) => eval(peer, host, &request, generation)?,
            Request::File { op } => {
                had_session = true;
                files::serve(peer, &op)?;
            }
            Request::Process { op } => {
                had_session = true;
                host.processes.serve(peer, &op)?;
            }
            Request::Dial { to } => {
                if dial(peer, &to)? == Dialled::Over {
                    return Ok(());
                }
            }
            Request::Poweroff => return stop(peer, host, Stop::Poweroff),
            Request::Reboot => return stop(peer, host, Stop::Reboot),
            Request::Hello { .. } | Request::Signal { .. } | Request::Resize(_) => {
                return Err(unexpected(&frame));
            }
        }
    }
}

fn unexpected(frame: &Frame) -> ConverseError {
    ConverseError::protocol(format!("this has no place here: {}", String::from_utf8_lossy(&frame.payload)))
}

fn exec(peer: &mut Peer, host: &Host, request: &ExecRequest) -> Result<(), ConverseError> {
    let (child, streams) = match host.launcher.launch(request, &[]) {
        Ok(launched) => launched,
        Err(error) => return Ok(peer.reply(&refusal(error.code(), &error))?),
    };
    match Session::new(peer, child, streams, request).run() {
        Ok(()) => Ok(()),
        Err(SessionError::Peer(error)) => Err(error.into()),
        Err(SessionError::Protocol { what }) => Err(ConverseError::protocol(what)),
        Err(SessionError::BadArgument { what }) => {
            Ok(peer.reply(&Reply::Error { code: ErrorCode::BadArgument, message: what })?)
        }
        Err(error @ SessionError::Poll { .. }) => {
            Err(ConverseError::Refused { code: ErrorCode::Failed, message: error.to_string() })
        }
    }
}

fn eval(peer: &mut Peer, host: &Host, request: &EvalRequest, generation: u16) -> Result<(), ConverseError> {
    let evaluation = match host.interpreter.evaluate(request) {
        Ok(evaluation) => evaluation,
        Err(error) => return Ok(peer.reply(&refusal(error.code(), &error))?),
    };
    for (channel, bytes) in [Channel::Stdout, Channel::Stderr].into_iter().zip(&evaluation.output) {
        peer.queue_data(channel, bytes)?;
    }
    for piece in evaluation.shown.into_iter().filter(|_| generation >= SHOWN_SINCE) {
        peer.reply(&Reply::Shown(piece))?;
    }
    Ok(peer.reply(&Reply::Evaluated(evaluation.evaluated))?)
}

fn refusal(code: ErrorCode, error: &impl ToString) -> Reply {
    Reply::Error { code, message: error.to_string() }
}

fn stop(peer: &mut Peer, host: &Host, what: Stop) -> Result<(), ConverseError> {
    let told = peer.reply(&Reply::Done);
    if host.stop.send(what).is_err() {
        say(format_args!("{what:?} was asked for, and nobody waits for it any more"));
    }
    Ok(told?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        assert!(same(b"secret", b"secret"));
        for wrong in [&b""[..], b"secre", b"secrets", b"Secret", b"secreT"] {
            assert!(!same(wrong, b"secret"), "{wrong:?}");
        }
    }
}
