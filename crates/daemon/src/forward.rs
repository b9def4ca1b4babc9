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
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UnixStream};
use types::Dirs;

use crate::auth::Door;
use crate::config::{Config, FileToken, ServeArgs};
use crate::doors::{Capacity, Host, ShutDoors, Stream};
use crate::observe::Peer;
use crate::serve::{ServeError, lock, runtime};
use crate::tls::Tls;

/// Who is let in: each takes one of the 1024 connections that the emulated host's agent serves, and others need some, too.
const CAPACITY: Capacity = Capacity { all: 768, network: 640 };
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

    /// Waits until it has ended.
    ///
    /// # Errors
    /// How, if it should not have.
    fn wait(&self) -> Result<(), String>;
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
    let doors = ShutDoors::new(&config)?;
    let runtime = runtime()?;
    let inside = Arc::new(start(token.as_ref().map(FileToken::as_str))?);
    let served = runtime.block_on(run(config, doors, tls, inside));
    runtime.shutdown_timeout(Duration::ZERO);
    Ok(served?)
}

async fn run<I: Inside>(config: Config, doors: ShutDoors, tls: Option<Tls>, inside: Arc<I>) -> Result<(), ServeError> {
    let doors = doors.open(tls, CAPACITY)?;
    let waiter = Arc::clone(&inside);
    let mut ended = tokio::task::spawn_blocking(move || waiter.wait());
    let relay = Relay { inside: Arc::clone(&inside), config: Arc::new(config) };
    let mut why = None;
    let over = async {
        why = Some((&mut ended).await.unwrap_or_else(|error| Err(error.to_string())));
    };
    let rooms = doors.stand_open(&relay, over).await;
    match why {
        // Nobody needed it any more.
        Some(Ok(())) => return Ok(()),
        Some(Err(why)) => return Err(ServeError::Inside { why }),
        None => {}
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

async fn pass_on(outside: impl Stream, inside: Transport) -> io::Result<()> {
    match inside {
        Transport::Unix(stream) => {
            stream.set_nonblocking(true)?;
            relay(outside, UnixStream::from_std(stream)?).await
        }
        Transport::Tcp(stream) => {
            stream.set_nonblocking(true)?;
            relay(outside, TcpStream::from_std(stream)?).await
        }
    }
}

/// Both ways, until all that was said inside is passed on: who has ended there reads nothing more, and a client that never
/// leaves holds no place.
async fn relay(outside: impl Stream, inside: impl Stream) -> io::Result<()> {
    let (mut from_outside, mut to_outside) = tokio::io::split(outside);
    let (mut from_inside, mut to_inside) = tokio::io::split(inside);
    let inwards = async {
        let passed = tokio::io::copy(&mut from_outside, &mut to_inside).await;
        // Who ends inside may have answered before, and that is worth more than what could not be sent.
        if let Err(error) = passed.and(to_inside.shutdown().await) {
            log::debug!("not all that a client said was heard: {error}");
        }
        std::future::pending().await
    };
    let outwards = async {
        tokio::io::copy(&mut from_inside, &mut to_outside).await?;
        to_outside.shutdown().await
    };
    tokio::select! {
        never = inwards => never,
        passed = outwards => passed,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn who_has_ended_inside_is_not_held_by_a_client_that_stays() {
        let (mut client, outside) = UnixStream::pair().unwrap();
        let (inside, mut daemon) = UnixStream::pair().unwrap();
        let relayed = tokio::spawn(relay(outside, inside));
        client.write_all(b"question").await.unwrap();
        let mut question = [0; 8];
        daemon.read_exact(&mut question).await.unwrap();
        daemon.write_all(b"answer").await.unwrap();
        drop(daemon);
        tokio::time::timeout(PATIENCE, relayed).await.unwrap().unwrap().unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!((&question, answer.as_str()), (b"question", "answer"));
    }

    #[tokio::test]
    async fn a_client_that_says_no_more_is_still_answered() {
        let (mut client, outside) = UnixStream::pair().unwrap();
        let (inside, mut daemon) = UnixStream::pair().unwrap();
        let relayed = tokio::spawn(relay(outside, inside));
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut question = String::new();
        daemon.read_to_string(&mut question).await.unwrap();
        daemon.write_all(b"answer").await.unwrap();
        drop(daemon);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!((question.as_str(), answer.as_str()), ("question", "answer"));
        relayed.await.unwrap().unwrap();
    }
}
