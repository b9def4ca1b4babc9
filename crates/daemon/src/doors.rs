//! The doors of a daemon: its address and its unix socket, open until a signal comes.
//!
//! Who stands behind them is somebody else: the routes, or a daemon elsewhere.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Config;
use crate::observe::Peer;
use crate::serve::{ServeError, failed};
use crate::socket::{Ours, listen};
use crate::tls::{Tls, is_noise};

/// How long a client may take to agree on TLS.
const TLS_PATIENCE: Duration = Duration::from_secs(10);
/// The most connections at once; more are closed.
const MAX_CONNECTIONS: usize = 4096;
/// After a connection that could not be taken, as when there are no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection that came.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// Who stands behind the doors.
pub(crate) trait Host: Clone + Send + Sync + 'static {
    /// Speaks with one client to the end.
    fn converse(&self, stream: impl Stream, peer: Peer) -> impl Future<Output = ()> + Send + 'static;

    /// Reads again what may have changed, besides the certificate.
    fn reload(&self) -> impl Future<Output = ()> + Send;
}

/// Doors that are open.
#[derive(Debug)]
pub(crate) struct Doors {
    tcp: Option<TcpListener>,
    unix: UnixListener,
    socket: Ours,
    tls: Option<Arc<Tls>>,
    room: Arc<Semaphore>,
    /// SIGTERM, SIGINT, SIGHUP.
    signals: [Signal; 3],
}

impl Doors {
    pub(crate) async fn open(config: &Config, tls: Option<Tls>) -> Result<Self, ServeError> {
        let socket = config.socket.clone();
        let tcp = match config.bind {
            Some(bind) => Some(TcpListener::bind(bind).await.map_err(failed("listen on", bind.to_string()))?),
            None => None,
        };
        let address = tcp.as_ref().map(TcpListener::local_addr).transpose();
        let address = address.map_err(failed("ask for the address of", "a listener"))?;
        let (unix, ours) = listen(&socket)?;
        let on = |kind| signal(kind).map_err(failed("wait for signals in", "."));
        let signals = [on(SignalKind::terminate())?, on(SignalKind::interrupt())?, on(SignalKind::hangup())?];
        let scheme = if tls.is_some() { "https" } else { "http" };
        match address {
            Some(address) => log::info!("listening on {scheme}://{address} and {}", socket.display()),
            None => log::info!("listening on {}", socket.display()),
        }
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Ok(Self { tcp, unix, socket: ours, tls: tls.map(Arc::new), room, signals })
    }

    /// Lets everybody in until a signal comes or something else is over; then the doors are shut.
    pub(crate) async fn stand_open(mut self, host: &impl Host, over: impl Future<Output = ()>) -> Rooms {
        notify(&[NotifyState::Ready]);
        tokio::pin!(over);
        loop {
            let [terminate, interrupt, hangup] = &mut self.signals;
            tokio::select! {
                taken = accept(self.tcp.as_ref()) => match taken {
                    Ok((stream, peer)) => self.take_tcp(stream, peer, host),
                    Err(error) => not_taken(&error).await,
                },
                taken = self.unix.accept() => match taken {
                    Ok((stream, _)) => self.spawn(stream, Peer::Local, host),
                    Err(error) => not_taken(&error).await,
                },
                _ = hangup.recv() => self.reload(host).await,
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                () = &mut over => break,
            }
        }
        notify(&[NotifyState::Stopping]);
        self.socket.remove();
        Rooms(self.room)
    }

    fn take_tcp(&self, stream: TcpStream, peer: SocketAddr, host: &impl Host) {
        if let Err(error) = stream.set_nodelay(true) {
            log::debug!("{peer}: {error}");
        }
        let Some(tls) = self.tls.clone() else { return self.spawn(stream, Peer::Address(peer), host) };
        let Some(place) = self.place() else { return };
        let host = host.clone();
        tokio::spawn(async move {
            let _place = place;
            match tokio::time::timeout(TLS_PATIENCE, tls.acceptor().accept(stream)).await {
                Ok(Ok(stream)) => host.converse(stream, Peer::Address(peer)).await,
                Ok(Err(error)) if is_noise(&error) => {}
                Ok(Err(error)) => log::debug!("{peer} speaks no TLS: {error}"),
                Err(_) => log::debug!("{peer} did not agree on TLS in time"),
            }
        });
    }

    /// Room for a connection; one too many is closed at once, because descriptors are what VMs are reached by.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.room).try_acquire_owned();
        place.inspect_err(|_| log::debug!("{MAX_CONNECTIONS} connections are open; one more was closed")).ok()
    }

    fn spawn(&self, stream: impl Stream, peer: Peer, host: &impl Host) {
        let Some(place) = self.place() else { return };
        let conversation = host.converse(stream, peer);
        tokio::spawn(async move {
            let _place = place;
            conversation.await;
        });
    }

    /// What cannot be used changes nothing.
    async fn reload(&self, host: &impl Host) {
        reloading();
        host.reload().await;
        let tls = self.tls.clone();
        let reloaded = tokio::task::spawn_blocking(move || {
            if let Some(Err(error)) = tls.as_deref().map(Tls::reload) {
                log::error!("the certificate stays as it was: {error}");
            }
        });
        if let Err(error) = reloaded.await {
            log::error!("the certificate was not read again: {error}");
        }
        notify(&[NotifyState::Ready]);
    }
}

/// Where those are who were let in.
#[derive(Debug)]
pub(crate) struct Rooms(Arc<Semaphore>);

impl Rooms {
    /// Waits until all have left, but no longer than this; whether they have.
    pub(crate) async fn empty(&self, deadline: Instant) -> bool {
        let all = u32::try_from(MAX_CONNECTIONS).expect("it is a small number");
        tokio::time::timeout_at(deadline.into(), self.0.acquire_many(all)).await.is_ok()
    }
}

/// The next connection; never one where nobody listens.
async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

async fn not_taken(error: &io::Error) {
    log::warn!("a connection cannot be taken: {error}");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Tells who started the daemon, if that wants to know.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, state) {
        log::debug!("nobody could be told: {error}");
    }
}

/// Tells who started the daemon that it reads things again; when that began is what tells it from an earlier time.
fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => log::debug!("nobody can tell what time it is: {error}"),
    }
}
