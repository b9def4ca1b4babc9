//! The line protocol of published clients ([`session::lines`]), for the host's side of the guest's network.
//!
//! ```text
//! namespace of the network ── TCP ── lines ── a connection of the agent's to itself ── what every client is served
//! ```
//!
//! Who connects proves nothing, so only the gateway may: that is the host, where it takes root to enter the namespace. The
//! guest's own users, who have the guest's own addresses, would be root by it.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use session::lines;
use session::{Connection, SessionError, Transport, numpy};

use crate::console::say;
use crate::peer::Peer;
use crate::serve::{ACCEPT_RETRY, Host, Place, STACK, converse};

/// More clients at once are turned away: each may have as much kept for it as an answer can be long.
const MAX_CLIENTS: usize = 32;
/// How long the agent may take to say hello to itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where to listen, and to whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Door {
    pub(crate) at: SocketAddr,
    /// The only one who may.
    pub(crate) from: IpAddr,
}

/// Begins to serve.
pub(crate) fn start(door: Door, host: Arc<Host>) -> io::Result<()> {
    let listener = TcpListener::bind(door.at)?;
    let server = Arc::new(Server { host, numpy: OnceLock::new() });
    thread::Builder::new().name("lines".into()).spawn(move || server.accept(&listener, door.from))?;
    Ok(())
}

struct Server {
    host: Arc<Host>,
    /// Asked once; forks have the same.
    numpy: OnceLock<String>,
}

impl Server {
    /// For ever.
    fn accept(self: &Arc<Self>, listener: &TcpListener, from: IpAddr) {
        let clients = Arc::new(AtomicUsize::new(0));
        loop {
            let client = match listener.accept() {
                Ok((client, address)) if address.ip() == from => client,
                Ok(_) => continue,
                Err(error) => {
                    say(format_args!("cannot accept a client's line: {error}"));
                    thread::sleep(ACCEPT_RETRY);
                    continue;
                }
            };
            let Some(place) = Place::take(&clients, MAX_CLIENTS) else { continue };
            let server = Arc::clone(self);
            let serve = move || {
                // A client that does not ask or listen has no use for the reason.
                drop(server.serve(client));
                drop(place);
            };
            if let Err(error) = thread::Builder::new().name("line".into()).stack_size(STACK).spawn(serve) {
                say(format_args!("cannot serve a client's line: {error}"));
            }
        }
    }

    fn serve(&self, client: TcpStream) -> io::Result<()> {
        let connection = self.connect().map_err(io::Error::other)?;
        lines::serve(&Transport::from(client), connection, || self.numpy())
    }

    /// To the agent itself, as a client has it.
    fn connect(&self) -> Result<Connection, SessionError> {
        let lost = |source| SessionError::Lost { source };
        let (near, far) = UnixStream::pair().map_err(lost)?;
        let (peer, host) = (Peer::new(far.into()).map_err(lost)?, Arc::clone(&self.host));
        let serving = thread::Builder::new().name("client".into()).stack_size(STACK);
        serving.spawn(move || converse(peer, &host)).map_err(lost)?;
        Connection::open(near, self.host.token.as_deref(), PATIENCE)
    }

    /// Of a guest with a warm interpreter; none is started to find out.
    fn numpy(&self) -> String {
        if let Some(known) = self.numpy.get() {
            return known.clone();
        }
        if !self.host.interpreter.runs() {
            return numpy::NONE.into();
        }
        match self.connect().and_then(numpy::ask) {
            Ok(Some(version)) => self.numpy.get_or_init(|| version).clone(),
            Ok(None) | Err(_) => numpy::UNKNOWN.into(),
        }
    }
}
