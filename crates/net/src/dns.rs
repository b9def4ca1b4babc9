//! The name server of all sandboxes: each asks its gateway, one thread answers for all of them.
//!
//! ```text
//! guest ── its own socket, opened inside its namespace ── Names ── a socket per question, on the host ── resolver
//!                                                           └ what is found is opened in the sandbox's set first
//! ```
//!
//! Only names that the policy allows are asked for; only IPv4 addresses are told; addresses that a policy must name to
//! open them (the host's own, link-local, other sandboxes, ...) are never told, whoever says that a name stands for
//! them. Anything else is refused, counted, and remembered for whoever wants to know what was asked for. With a wildcard
//! a guest can tell the name server of that domain whatever it likes, in the names it asks for; so it can by connecting
//! to what the wildcard allows.
//!
//! Questions come by UDP alone: no answer of ours is too long for it.

pub mod message;
mod queue;
mod server;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::EventfdFlags;

use crate::network::Network;
use crate::plan::Number;
use crate::site::Site;
use server::Server;

/// The most name servers of the host that are asked, one after the other.
const MAX_SERVERS: usize = 3;
const PORT: u16 = 53;
/// How long an order may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whom names are asked of.
#[derive(Clone, Debug)]
pub enum Upstream {
    /// Those named in a file like `/etc/resolv.conf`, as it was a moment ago.
    File(PathBuf),
    /// These.
    Servers(Vec<SocketAddr>),
}

impl Upstream {
    fn servers(&self) -> Vec<SocketAddr> {
        match self {
            Self::Servers(servers) => servers.iter().copied().take(MAX_SERVERS).collect(),
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => parse(&text),
                Err(error) => {
                    log::warn!("{} says no name server: {error}", path.display());
                    Vec::new()
                }
            },
        }
    }
}

fn parse(text: &str) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        Some(SocketAddr::new(address.parse().ok()?, PORT))
    });
    servers.take(MAX_SERVERS).collect()
}

/// What the server is told.
#[derive(Debug)]
enum Command {
    Serve(Arc<Network>),
    /// The sender goes when it is done.
    Forget(Number, Sender<Infallible>),
    End,
}

/// The name server of all sandboxes; it ends when this is dropped.
#[derive(Debug)]
pub struct Names {
    commands: Sender<Command>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Names {
    /// Starts it on the host of this thread.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub fn start(site: Site, upstream: Upstream) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(rustix::event::eventfd(0, flags)?);
        let (commands, orders) = channel();
        let server = Server::new(site, upstream, orders, Arc::clone(&bell))?;
        let thread = std::thread::Builder::new().name("names".into()).spawn(move || server.run())?;
        Ok(Self { commands, bell, thread: Some(thread) })
    }

    /// Answers the guest of that network from now on.
    pub fn serve(&self, network: Arc<Network>) {
        self.tell(Command::Serve(network));
    }

    /// Answers the guest of that network no more: when this returns, nothing is said or opened for it.
    pub fn forget(&self, number: Number) {
        let (done, over) = channel();
        self.tell(Command::Forget(number, done));
        if over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            log::error!("the name server does not say that it has forgotten {}", number.namespace());
        }
    }

    fn tell(&self, command: Command) {
        let rung = self.commands.send(command).map_err(io::Error::other).and_then(|()| ring(&self.bell));
        if let Err(error) = rung {
            log::error!("the name server does not listen: {error}");
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.tell(Command::End);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the name server panicked");
        }
    }
}

fn ring(bell: &impl AsFd) -> io::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::io::write(bell, &1_u64.to_ne_bytes())) {
        // It has been rung so often that it cannot be missed.
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
