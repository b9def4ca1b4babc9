//! What both the first process and a plain one run: a reaper, a listener, and somebody who waits for the end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use proto::guest::{AgentHello, GENERATION};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use rustix::time::ClockId;

use crate::children::Children;
use crate::interpreter::WarmInterpreter;
use crate::launch::Launcher;
use crate::lines::{self, Door};
use crate::processes::Processes;
use crate::renew::{Renewer, Scope};
use crate::serve::{Host, Listener, Stop, serve};

/// A client costs a handful of descriptors, and there may be a thousand of them.
const OWN_OPEN_FILES: u64 = 16 << 10;

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error("cannot read the token in {}: {source}", path.display())]
    Token { path: PathBuf, source: io::Error },
    #[error("{} is empty, and so would be the protection", path.display())]
    EmptyToken { path: PathBuf },
    #[error("cannot serve: {source}")]
    System {
        #[from]
        source: io::Error,
    },
}

impl From<Errno> for ServiceError {
    fn from(errno: Errno) -> Self {
        Self::System { source: errno.into() }
    }
}

/// The agent at work.
pub(crate) struct Service {
    host: Arc<Host>,
    pub(crate) children: Arc<Children>,
    /// Where the end of the machine is asked for.
    pub(crate) stop: Sender<Stop>,
    stopped: Receiver<Stop>,
}

impl Service {
    /// Begins to serve. `open_files` is what started processes get; our own limit is raised. `scope` is what a renewal
    /// may change.
    pub(crate) fn start(
        listener: Listener,
        token: Option<String>,
        open_files: Rlimit,
        scope: Scope,
    ) -> Result<Self, ServiceError> {
        raise_open_files(open_files)?;
        let (stop, stopped) = mpsc::channel();
        let children = Children::new()?;
        let hello = AgentHello {
            generation: GENERATION,
            agent: env!("CARGO_PKG_VERSION").into(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            boot_ms: since_boot_ms(),
        };
        let launcher = Arc::new(Launcher::new(Arc::clone(&children), open_files));
        let interpreter = Arc::new(WarmInterpreter::new(Arc::clone(&launcher)));
        let renewer = Renewer::new(scope, Arc::clone(&launcher), Arc::clone(&interpreter));
        let processes = Processes::new(Arc::clone(&launcher));
        let host = Arc::new(Host { launcher, interpreter, renewer, processes, token, hello, stop: stop.clone() });
        let served = Arc::clone(&host);
        thread::Builder::new().name("accept".into()).spawn(move || serve(&listener, &served))?;
        Ok(Self { host, children, stop, stopped })
    }

    /// Serves those who speak in lines, too.
    pub(crate) fn serve_lines(&self, door: Door) -> io::Result<()> {
        lines::start(door, Arc::clone(&self.host))
    }

    /// Waits until somebody wants the machine to end.
    pub(crate) fn wait_for_stop(&self) -> Stop {
        // Cannot fail while `self.stop` lives; if it could, the machine would be of no use any more.
        self.stopped.recv().unwrap_or(Stop::Poweroff)
    }
}

/// Reads what clients must know.
pub(crate) fn read_token(path: &Path) -> Result<String, ServiceError> {
    let text = fs::read_to_string(path).map_err(|source| ServiceError::Token { path: path.into(), source })?;
    match text.trim() {
        "" => Err(ServiceError::EmptyToken { path: path.into() }),
        token => Ok(token.into()),
    }
}

fn raise_open_files(limit: Rlimit) -> Result<(), ServiceError> {
    let most = limit.maximum.unwrap_or(u64::MAX);
    let raised = limit.current.unwrap_or(u64::MAX).max(OWN_OPEN_FILES).min(most);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit })?;
    Ok(())
}

fn since_boot_ms() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    // Neither part is ever negative on this clock.
    u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}
