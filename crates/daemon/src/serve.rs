//! From a configuration to a daemon that answers, until a signal ends it.
//!
//! ```text
//! lock ─ registry ─ adopt what lives ─ reaper ─ listen ─ READY=1
//! SIGHUP              token, certificate and audit log are read or opened again
//! SIGTERM, SIGINT     no new connection; requests under way end, or 30 s pass
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustix::fs::FlockOperation;
use sd_notify::NotifyState;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt as _;
use types::Dirs;

use crate::adopt::adopt;
use crate::audit::Audit;
use crate::auth::Auth;
use crate::config::{Config, ConfigError, ServeArgs};
use crate::guests::MAX_TALKS;
use crate::observe::Peer;
use crate::reaper::Reaper;
use crate::registry::{Registry, RegistryError};
use crate::routes::router;
use crate::state::App;
use crate::tls::{Tls, TlsError, is_noise};

/// How long a client may take to send a request's head, also the next one of a connection.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// How long a client may take to agree on TLS.
const TLS_PATIENCE: Duration = Duration::from_secs(10);
/// The most connections at once; more wait until one ends.
const MAX_CONNECTIONS: usize = 4096;
/// The most verbs at once, besides what guests may hold up.
const MAX_VERBS: usize = 2048;
/// After a connection that could not be taken, as when there are no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It is told something that makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What it remembers cannot be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Its certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There is one already.
    #[error("another daemon serves from {}; end it first", path.display())]
    Running {
        /// Where.
        path: PathBuf,
    },
    /// What lives could not be found out.
    #[error("what runs here cannot be told: {message}")]
    Adopt {
        /// Why.
        message: String,
    },
    /// The system says no.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

fn failed(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> ServeError {
    let path = path.into();
    move |source| ServeError::Io { action, path, source }
}

/// Serves until a signal ends it.
///
/// # Errors
/// When it cannot start.
pub fn serve(args: &ServeArgs, dirs: Dirs) -> Result<(), ServeError> {
    let config = Config::new(args, dirs)?;
    let _lock = lock(&config.dirs.run)?;
    engine::raise_descriptors().map_err(failed("raise the limit of open files in", "."))?;
    let auth = Auth::default();
    config.token_file.as_deref().map(|path| auth.load(path)).transpose()?;
    let tls = config.tls.clone().map(|(cert, key)| Tls::load(cert, key)).transpose()?;
    let audit = Audit::open(&config.audit_log).map_err(failed("write", &config.audit_log))?;
    let registry = Registry::open(&config.state)?;
    let app = App::new(config.dirs.clone(), registry, auth, audit, config.branch_concurrency);
    let found = adopt(&app).map_err(|error| ServeError::Adopt { message: error.message })?;
    log::info!("{} sandboxes run, {} are gone, {} were ended", found.adopted, found.gone, found.ended);
    let reaper = Reaper::start(app.clone()).map_err(failed("start a thread in", "."))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(MAX_VERBS + MAX_TALKS)
        .thread_name("forkd")
        .build()
        .map_err(failed("start threads in", "."))?;
    let server =
        Server { app: app.clone(), config, tls: tls.map(Arc::new), room: Arc::new(Semaphore::new(MAX_CONNECTIONS)) };
    let deadline = runtime.block_on(server.run())?;
    drop(reaper);
    // Branches that are being written are not requests any more, and are given the same time.
    runtime.shutdown_timeout(deadline.saturating_duration_since(Instant::now()));
    app.audit.flush();
    Ok(())
}

/// One daemon for one set of VMs.
fn lock(run: &Path) -> Result<File, ServeError> {
    std::fs::create_dir_all(run).map_err(failed("make", run))?;
    let path = run.join("daemon.lock");
    let file = File::create(&path).map_err(failed("make", &path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::AGAIN) => Err(ServeError::Running { path: run.into() }),
        Err(error) => Err(failed("lock", &path)(error.into())),
    }
}

struct Server {
    app: App,
    config: Config,
    tls: Option<Arc<Tls>>,
    room: Arc<Semaphore>,
}

impl Server {
    /// Serves until a signal; until when what is under way may take.
    async fn run(self) -> Result<Instant, ServeError> {
        let (socket, bind) = (self.config.socket.clone(), self.config.bind);
        let tcp = TcpListener::bind(bind).await.map_err(failed("listen on", bind.to_string()))?;
        let address = tcp.local_addr().map_err(failed("listen on", bind.to_string()))?;
        let unix = listen(&socket)?;
        let [mut terminate, mut interrupt, mut hangup] = signals()?;
        let router = router(self.app.clone());
        let graceful = GracefulShutdown::new();
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        log::info!("listening on {scheme}://{address} and {}", socket.display());
        notify(&[NotifyState::Ready]);
        loop {
            tokio::select! {
                taken = tcp.accept() => match taken {
                    Ok((stream, peer)) => self.take_tcp(stream, peer, &router, &graceful),
                    Err(error) => not_taken(&error).await,
                },
                taken = unix.accept() => match taken {
                    Ok((stream, _)) => self.spawn(stream, Peer::Local, &router, &graceful),
                    Err(error) => not_taken(&error).await,
                },
                _ = hangup.recv() => self.reload().await,
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        notify(&[NotifyState::Stopping]);
        drop((tcp, unix));
        if let Err(error) = std::fs::remove_file(&socket) {
            log::warn!("{} is left behind: {error}", socket.display());
        }
        self.app.stopping.send_replace(true);
        let deadline = Instant::now() + self.config.drain;
        log::info!("ending; requests under way have {} s", self.config.drain.as_secs());
        if tokio::time::timeout_at(deadline.into(), graceful.shutdown()).await.is_err() {
            log::warn!("requests that did not end in time are cut short");
        }
        Ok(deadline)
    }

    fn take_tcp(
        &self,
        stream: tokio::net::TcpStream,
        peer: std::net::SocketAddr,
        router: &Router,
        graceful: &GracefulShutdown,
    ) {
        if let Err(error) = stream.set_nodelay(true) {
            log::debug!("{peer}: {error}");
        }
        let Some(tls) = self.tls.clone() else {
            return self.spawn(stream, Peer::Address(peer), router, graceful);
        };
        let Some(place) = self.place() else { return };
        let (router, watcher) = (router.clone(), graceful.watcher());
        tokio::spawn(async move {
            let _place = place;
            match tokio::time::timeout(TLS_PATIENCE, tls.acceptor().accept(stream)).await {
                Ok(Ok(stream)) => converse(stream, Peer::Address(peer), router, watcher).await,
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

    fn spawn<S>(&self, stream: S, peer: Peer, router: &Router, graceful: &GracefulShutdown)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(place) = self.place() else { return };
        let (router, watcher) = (router.clone(), graceful.watcher());
        tokio::spawn(async move {
            let _place = place;
            converse(stream, peer, router, watcher).await;
        });
    }

    /// Reads again what may have changed. What cannot be used changes nothing.
    async fn reload(&self) {
        notify(&[NotifyState::Reloading]);
        let (app, tls, token_file) = (self.app.clone(), self.tls.clone(), self.config.token_file.clone());
        let reloaded = tokio::task::spawn_blocking(move || {
            if let Some(Err(error)) = token_file.as_deref().map(|path| app.auth.load(path)) {
                log::error!("the token stays as it was: {error}");
            }
            if let Some(Err(error)) = tls.as_deref().map(Tls::reload) {
                log::error!("the certificate stays as it was: {error}");
            }
            if let Err(error) = app.audit.reopen() {
                log::error!("the audit log stays as it was: {error}");
            }
        });
        if let Err(error) = reloaded.await {
            log::error!("nothing was read again: {error}");
        }
        notify(&[NotifyState::Ready]);
    }
}

/// Answers the requests of one connection, one after the other.
async fn converse<S>(stream: S, peer: Peer, router: Router, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        router.clone().oneshot(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    // A client that goes away, or says something that is no HTTP, is told about by nobody.
    if let Err(error) = watcher.watch(connection).await {
        log::debug!("a connection of {peer:?} failed: {error}");
    }
}

async fn not_taken(error: &io::Error) {
    log::warn!("a connection cannot be taken: {error}");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// A socket that only its owner may open. One that nobody listens on any more makes room: the lock is ours.
fn listen(path: &Path) -> Result<UnixListener, ServeError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", path)(error)),
        _ => {}
    }
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(failed("make", dir))?;
    }
    // Made elsewhere and moved, so that nobody can open it before it is only ours.
    let hidden = path.with_extension("new");
    match std::fs::remove_file(&hidden) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &hidden)(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&hidden).map_err(failed("listen on", path))?;
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&hidden, owner_only).map_err(failed("protect", path))?;
    std::fs::rename(&hidden, path).map_err(failed("listen on", path))?;
    Ok(listener)
}

/// SIGTERM, SIGINT, SIGHUP.
fn signals() -> Result<[Signal; 3], ServeError> {
    let on = |kind| signal(kind).map_err(failed("wait for signals in", "."));
    Ok([on(SignalKind::terminate())?, on(SignalKind::interrupt())?, on(SignalKind::hangup())?])
}

/// Tells who started the daemon, if that wants to know.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, state) {
        log::debug!("nobody could be told: {error}");
    }
}
