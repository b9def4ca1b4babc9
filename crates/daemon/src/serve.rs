//! From a configuration to a daemon that answers, until a signal ends it.
//!
//! ```text
//! lock ─ bind ─ registry ─ adopt what lives ─ reaper ─ listen ─ READY=1
//! SIGHUP              token, certificate and audit log are read or opened again
//! SIGTERM, SIGINT     no new connection; requests under way end, or 30 s pass
//! ```

use std::fs::File;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use engine::CoresError;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::fs::FlockOperation;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tower::ServiceExt as _;
use types::Dirs;

use crate::adopt::adopt;
use crate::audit::Audit;
use crate::auth::Auth;
use crate::config::{Config, ConfigError, ServeArgs};
use crate::doors::{Capacity, Host, ShutDoors, Stream};
use crate::guests::MAX_TALKS;
use crate::observe::Peer;
use crate::outside::Outside;
use crate::reaper::Reaper;
use crate::registry::{Registry, RegistryError};
use crate::routes::router;
use crate::socket::beside;
use crate::state::App;
use crate::tls::{Tls, TlsError};

/// How often is looked whether anybody needs the daemon.
const IDLE_PAUSE: Duration = Duration::from_millis(500);
/// Who is let in.
const CAPACITY: Capacity = Capacity { all: 4096, network: 3840 };
/// The most verbs at once, besides what guests may hold up.
const MAX_VERBS: usize = 2048;

/// Why the daemon does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Sandboxes would share cores.
    #[error(transparent)]
    Cores(#[from] CoresError),
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
    #[error("another daemon is at work here: it holds {}; end it first, or give this one places of its own", path.display())]
    Running {
        /// What it holds.
        path: PathBuf,
    },
    /// Something else is where its socket shall be.
    #[error("{} is there and is no socket; give another path with --socket (FORKD_SOCKET)", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The daemon that everything is passed on to ended.
    #[error("the daemon inside ended: {why}")]
    Inside {
        /// How.
        why: String,
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

pub(crate) fn failed(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> ServeError {
    let path = path.into();
    move |source| ServeError::Io { action, path, source }
}

/// Serves until a signal ends it.
///
/// # Errors
/// When it cannot start.
pub fn serve(args: &ServeArgs, dirs: Dirs) -> Result<(), ServeError> {
    let config = Config::new(args, dirs)?;
    config.cores.check()?;
    let _locks = [lock(&config.dirs.run.join("daemon.lock"))?, lock(&beside(&config.state, ".lock"))?];
    engine::raise_descriptors().map_err(failed("raise the limit of open files in", "."))?;
    let doors = ShutDoors::new(&config)?;
    let auth = Auth::default();
    config.token_file.as_deref().map(|path| auth.load(path)).transpose()?;
    let tls = config.tls.clone().map(|(cert, key)| Tls::load(cert, key)).transpose()?;
    let audit = Audit::open(&config.audit_log).map_err(failed("write", &config.audit_log))?;
    let registry = Registry::open(&config.state)?;
    let outside = config.builder_socket.as_deref().map(Outside::listen).transpose()?;
    let app = App::new(&config, registry, auth, audit, outside);
    let found = adopt(&app).map_err(|error| ServeError::Adopt { message: error.message })?;
    log::info!("{} sandboxes run, {} are gone, {} were ended", found.adopted, found.gone, found.ended);
    let reaper = Reaper::start(app.clone()).map_err(failed("start a thread in", "."))?;
    let runtime = runtime()?;
    let deadline = runtime.block_on(run(app.clone(), config, doors, tls))?;
    drop(reaper);
    // Branches that are being written are not requests any more, and are given the same time.
    runtime.shutdown_timeout(deadline.saturating_duration_since(Instant::now()));
    app.audit.flush();
    Ok(())
}

/// The threads of a daemon.
pub(crate) fn runtime() -> Result<Runtime, ServeError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().max_blocking_threads(MAX_VERBS + MAX_TALKS).thread_name("forkd");
    builder.build().map_err(failed("start threads in", "."))
}

/// One daemon for one set of VMs, and for one registry.
pub(crate) fn lock(path: &Path) -> Result<File, ServeError> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(failed("make", dir))?;
    }
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(failed("make", path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // When it was changed last is when who holds it began.
        Ok(()) => file.set_modified(SystemTime::now()).map(|()| file).map_err(failed("touch", path)),
        Err(rustix::io::Errno::AGAIN) => Err(ServeError::Running { path: path.into() }),
        Err(error) => Err(failed("lock", path)(error.into())),
    }
}

/// The routes, behind the doors.
#[derive(Clone)]
struct Routes {
    app: App,
    token_file: Option<PathBuf>,
    router: Router,
}

impl Host for Routes {
    fn converse(&self, stream: impl Stream, peer: Peer) -> impl Future<Output = ()> + Send + 'static {
        let (app, router) = (self.app.clone(), self.router.clone());
        async move {
            let _client = app.clients.come();
            converse(stream, peer, router, &app).await;
        }
    }

    async fn reload(&self) {
        let (app, token_file) = (self.app.clone(), self.token_file.clone());
        let reloaded = tokio::task::spawn_blocking(move || {
            if let Some(Err(error)) = token_file.as_deref().map(|path| app.auth.load(path)) {
                log::error!("the token stays as it was: {error}");
            }
            if let Err(error) = app.audit.reopen() {
                log::error!("the audit log stays as it was: {error}");
            }
        });
        if let Err(error) = reloaded.await {
            log::error!("nothing was read again: {error}");
        }
    }
}

/// Serves until a signal; until when what is under way may take.
async fn run(app: App, config: Config, doors: ShutDoors, tls: Option<Tls>) -> Result<Instant, ServeError> {
    let doors = doors.open(tls, CAPACITY)?;
    let routes = Routes { router: router(app.clone()), app: app.clone(), token_file: config.token_file };
    let rooms = doors.stand_open(&routes, idle(&app)).await;
    app.stopping.send_replace(true);
    let deadline = Instant::now() + config.drain;
    log::info!("ending; requests under way have {} s", config.drain.as_secs());
    if !rooms.empty(deadline).await {
        log::warn!("requests that did not end in time are cut short");
    }
    Ok(deadline)
}

/// Waits until nobody needs the daemon any more, if it ends then.
async fn idle(app: &App) {
    if app.idle.is_none() {
        std::future::pending::<()>().await;
    }
    loop {
        tokio::time::sleep(IDLE_PAUSE).await;
        // Asked off the reactor: the registry blocks.
        if app.verb(|app| Ok(app.is_idle())).await.unwrap_or(false) {
            log::info!("nobody needs this daemon any more");
            return;
        }
    }
}

/// Waits until the daemon is about to end; one that is gone is.
async fn told(stopping: &mut watch::Receiver<bool>) {
    drop(stopping.wait_for(|stopping| *stopping).await);
}

/// Answers the requests of one connection, one after the other. When the daemon is about to end, the one under way is the
/// last.
async fn converse(stream: impl Stream, peer: Peer, router: Router, app: &App) {
    let (mut stopping, patience) = (app.stopping.subscribe(), app.patience);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(patience);
        router.clone().oneshot(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(patience.head);
    let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::pin!(connection);
    let served = tokio::select! {
        served = &mut connection => served,
        () = told(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    // A client that goes away, or says something that is no HTTP, is told about by nobody.
    if let Err(error) = served {
        log::debug!("a connection of {peer:?} failed: {error}");
    }
}
