//! Doors to a daemon elsewhere: everything that comes is passed on to it, and what it says is passed back.
//!
//! ```text
//! address ─ TLS, if any ─┐                   ┌─ its address, where it wants the token
//!                        ├─ bytes, as they are ─┤
//! unix socket ───────────┘                   └─ its unix socket
//! ```
//!
//! Who is let in, what is written down and what is answered is all decided there.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use session::Transport;
use tokio::net::{TcpStream, UnixStream};
use types::Dirs;

use crate::auth::Door;
use crate::config::{Config, FileToken, ServeArgs};
use crate::doors::{Doors, Host, Stream};
use crate::observe::Peer;
use crate::serve::{ServeError, lock, runtime};
use crate::tls::Tls;

/// How much longer than what it gives its requests the daemon there may take to end.
const GRACE: Duration = Duration::from_secs(10);

/// A daemon elsewhere. All of it may block.
pub trait Inside: Send + Sync + 'static {
    /// A connection to it.
    ///
    /// # Errors
    /// When it cannot be reached.
    fn dial(&self, door: Door) -> io::Result<Transport>;

    /// Lets it read again what may have changed; the token is this, if there is one.
    ///
    /// # Errors
    /// When it cannot be told.
    fn reload(&self, token: Option<&str>) -> io::Result<()>;

    /// Lets it end when what is under way has ended.
    ///
    /// # Errors
    /// When it cannot be told.
    fn stop(&self) -> io::Result<()>;

    /// Waits until it has ended, and says how.
    fn wait(&self) -> String;
}

/// Passes everything on until a signal ends it or the daemon inside ends. That one is started when it is certain that the
/// settings make sense, and given the token.
///
/// # Errors
/// When it cannot start, and when the daemon inside ends by itself.
pub fn forward<I: Inside, E: From<ServeError>>(
    args: &ServeArgs,
    dirs: Dirs,
    start: impl FnOnce(Option<&str>) -> Result<I, E>,
) -> Result<(), E> {
    let config = Config::new(args, dirs).map_err(ServeError::from)?;
    let _lock = lock(&config.dirs.run.join("daemon.lock"))?;
    let token = config.token_file.as_deref().map(FileToken::read).transpose().map_err(ServeError::from)?;
    let tls = config.tls.clone().map(|(cert, key)| Tls::load(cert, key)).transpose().map_err(ServeError::from)?;
    let runtime = runtime()?;
    let inside = Arc::new(start(token.as_ref().map(FileToken::as_str))?);
    let deadline = runtime.block_on(run(config, tls, inside));
    runtime.shutdown_timeout(Duration::ZERO);
    Ok(deadline?)
}

async fn run<I: Inside>(config: Config, tls: Option<Tls>, inside: Arc<I>) -> Result<(), ServeError> {
    let waiter = Arc::clone(&inside);
    let mut ended = tokio::task::spawn_blocking(move || waiter.wait());
    let doors = Doors::open(&config, tls).await?;
    let relay = Relay { inside: Arc::clone(&inside), config: Arc::new(config) };
    let mut why = None;
    let over = async {
        why = Some((&mut ended).await.unwrap_or_else(|error| error.to_string()));
    };
    let rooms = doors.stand_open(&relay, over).await;
    if let Some(why) = why {
        return Err(ServeError::Inside { why });
    }
    if let Err(error) = tokio::task::spawn_blocking(move || inside.stop()).await.unwrap_or_else(|it| Err(it.into())) {
        log::warn!("the daemon inside cannot be told to end: {error}");
    }
    let deadline = Instant::now() + relay.config.drain + GRACE;
    if !rooms.empty(deadline).await || tokio::time::timeout_at(deadline.into(), ended).await.is_err() {
        log::warn!("requests that did not end in time are cut short");
    }
    Ok(())
}

/// Passes on.
struct Relay<I> {
    inside: Arc<I>,
    config: Arc<Config>,
}

impl<I> Clone for Relay<I> {
    fn clone(&self) -> Self {
        Self { inside: Arc::clone(&self.inside), config: Arc::clone(&self.config) }
    }
}

impl<I: Inside> Host for Relay<I> {
    fn converse(&self, stream: impl Stream, peer: Peer) -> impl Future<Output = ()> + Send + 'static {
        let inside = Arc::clone(&self.inside);
        async move {
            let dialled = tokio::task::spawn_blocking(move || inside.dial(peer.door())).await;
            // A client that goes away is told about by nobody.
            match dialled.unwrap_or_else(|error| Err(error.into())) {
                Ok(transport) => match pass_on(stream, transport).await {
                    Ok(()) => {}
                    Err(error) => log::debug!("a connection of {peer:?} failed: {error}"),
                },
                Err(error) => log::error!("the daemon inside cannot be reached: {error}"),
            }
        }
    }

    async fn reload(&self) {
        let relay = self.clone();
        let told = tokio::task::spawn_blocking(move || {
            let token = relay.config.token_file.as_deref().map(FileToken::read).transpose();
            let token = token.map_err(io::Error::other)?;
            relay.inside.reload(token.as_ref().map(FileToken::as_str))
        });
        if let Err(error) = told.await.unwrap_or_else(|error| Err(error.into())) {
            log::error!("the daemon inside stays as it was: {error}");
        }
    }
}

/// Both ways, until both sides have ended.
async fn pass_on(mut outside: impl Stream, inside: Transport) -> io::Result<()> {
    match inside {
        Transport::Unix(stream) => {
            stream.set_nonblocking(true)?;
            tokio::io::copy_bidirectional(&mut outside, &mut UnixStream::from_std(stream)?).await?;
        }
        Transport::Tcp(stream) => {
            stream.set_nonblocking(true)?;
            tokio::io::copy_bidirectional(&mut outside, &mut TcpStream::from_std(stream)?).await?;
        }
    }
    Ok(())
}
