//! The doors of a daemon: its address and its unix socket, open until a signal comes. That it can have them is certain
//! before anything else is done; until they are opened, whoever comes is turned away.
//!
//! Who stands behind them is somebody else: the routes, or a daemon elsewhere.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::auth::Door;
use crate::config::Config;
use crate::observe::Peer;
use crate::serve::{ServeError, failed};
use crate::socket::{Ours, bind};
use crate::tls::{Tls, is_noise};

/// How long a client may take to agree on TLS.
const TLS_PATIENCE: Duration = Duration::from_secs(10);
/// How many may wait to be let in.
const QUEUE: u32 = 1024;
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

/// The most connections at once; more are closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) all: usize,
    /// Of these, by the address: some room is left for who comes by the unix socket.
    pub(crate) network: usize,
}

/// Doors that are ours and shut.
#[derive(Debug)]
pub(crate) struct ShutDoors {
    tcp: Option<TcpSocket>,
    unix: UnixSocket,
    socket: Ours,
    path: PathBuf,
}

impl ShutDoors {
    pub(crate) fn new(config: &Config) -> Result<Self, ServeError> {
        let tcp = config.bind.map(|address| bind_tcp(address).map_err(failed("listen on", address.to_string())));
        let tcp = tcp.transpose()?;
        let (unix, socket) = bind(&config.socket)?;
        Ok(Self { tcp, unix, socket, path: config.socket.clone() })
    }

    /// Opens them. Signals are waited for from now on, and end the process until now.
    pub(crate) fn open(self, tls: Option<Tls>, capacity: Capacity) -> Result<Doors, ServeError> {
        let Self { tcp, unix, socket, path } = self;
        let tcp = tcp.map(|tcp| tcp.listen(QUEUE)).transpose().map_err(failed("listen on", "the address"))?;
        let address = tcp.as_ref().map(TcpListener::local_addr).transpose();
        let address = address.map_err(failed("ask for the address of", "a listener"))?;
        let unix = unix.listen(QUEUE).map_err(failed("listen on", &path))?;
        let on = |kind| signal(kind).map_err(failed("wait for signals in", "."));
        let signals = [on(SignalKind::terminate())?, on(SignalKind::interrupt())?, on(SignalKind::hangup())?];
        let scheme = if tls.is_some() { "https" } else { "http" };
        match address {
            Some(address) => log::info!("listening on {scheme}://{address} and {}", path.display()),
            None => log::info!("listening on {}", path.display()),
        }
        let [room, network] = [capacity.all, capacity.network].map(|places| Arc::new(Semaphore::new(places)));
        Ok(Doors { tcp, unix, socket, tls: tls.map(Arc::new), room, network, capacity, signals })
    }
}

/// As [`TcpListener::bind`] does it, short of listening.
fn bind_tcp(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Doors that are open.
#[derive(Debug)]
pub(crate) struct Doors {
    tcp: Option<TcpListener>,
    unix: UnixListener,
    socket: Ours,
    tls: Option<Arc<Tls>>,
    room: Arc<Semaphore>,
    network: Arc<Semaphore>,
    capacity: Capacity,
    /// SIGTERM, SIGINT, SIGHUP.
    signals: [Signal; 3],
}

impl Doors {
    /// Lets everybody in until a signal comes or something else is over; then the doors are shut.
    pub(crate) async fn stand_open(mut self, host: &impl Host, over: impl Future<Output = ()>) -> Rooms {
        notify(&[NotifyState::Ready]);
        tokio::pin!(over);
        let reloads = Arc::new(Mutex::new(()));
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
                // On its own: a disk or a machine that is slow keeps nobody out, and no signal from being heard.
                _ = hangup.recv() => drop(tokio::spawn(reload(Arc::clone(&reloads), self.tls.clone(), host.clone()))),
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                () = &mut over => break,
            }
        }
        notify(&[NotifyState::Stopping]);
        drop(self.socket);
        Rooms { room: self.room, all: self.capacity.all }
    }

    fn take_tcp(&self, stream: TcpStream, peer: SocketAddr, host: &impl Host) {
        if let Err(error) = stream.set_nodelay(true) {
            log::debug!("{peer}: {error}");
        }
        let Some(tls) = self.tls.clone() else { return self.spawn(stream, Peer::Address(peer), host) };
        let Some(place) = self.place(Door::Network) else { return };
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
    fn place(&self, door: Door) -> Option<Place> {
        let place = || {
            let network = (door == Door::Network).then(|| Arc::clone(&self.network).try_acquire_owned()).transpose()?;
            Ok::<_, TryAcquireError>((Arc::clone(&self.room).try_acquire_owned()?, network))
        };
        place().inspect_err(|_| log::debug!("as many connections are open as may be; one more was closed")).ok()
    }

    fn spawn(&self, stream: impl Stream, peer: Peer, host: &impl Host) {
        let Some(place) = self.place(peer.door()) else { return };
        let conversation = host.converse(stream, peer);
        tokio::spawn(async move {
            let _place = place;
            conversation.await;
        });
    }
}

/// Reads again what may have changed, one time after the other. What cannot be used changes nothing.
async fn reload(reloads: Arc<Mutex<()>>, tls: Option<Arc<Tls>>, host: impl Host) {
    let _alone = reloads.lock().await;
    reloading();
    host.reload().await;
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

/// Room for a connection, and for one from the network.
type Place = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// Where those are who were let in.
#[derive(Debug)]
pub(crate) struct Rooms {
    room: Arc<Semaphore>,
    all: usize,
}

impl Rooms {
    /// Waits until all have left, but no longer than this; whether they have.
    pub(crate) async fn empty(&self, deadline: Instant) -> bool {
        let all = u32::try_from(self.all).expect("it is a small number");
        tokio::time::timeout_at(deadline.into(), self.room.acquire_many(all)).await.is_ok()
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
