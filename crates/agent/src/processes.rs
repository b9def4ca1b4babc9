//! Processes that outlive their clients.
//!
//! ```text
//! Start ──> Process ─ its thread: output ──> kept (the last of it) ──> every client that attached, at its own pace
//!              │                  exit, deadline
//!              └── in the table until it is forgotten, or has ended and its room is needed
//! ```

mod attach;
mod feed;
mod kept;
mod process;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::guest::{ErrorCode, ExecRequest, MAX_PROCESSES, ProcessInfo, ProcessRequest, Reply};

use crate::launch::{LaunchError, Launcher};
use crate::peer::{Peer, PeerError};

use process::Process;

/// Why something with processes was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("{MAX_PROCESSES} processes run already; forget some of them")]
    TooMany,
    #[error("there is no process {id}; it was forgotten, or never was")]
    Unknown { id: u64 },
    #[error("process {id} has ended")]
    Ended { id: u64 },
    #[error("process {id} takes no input: {why}")]
    NoInput { id: u64, why: &'static str },
    #[error("process {id} has no terminal to resize")]
    NoTerminal { id: u64 },
    #[error("{signal} is not a signal; they go from 1 to 64")]
    NoSignal { signal: i32 },
    #[error("process {id}: {source}")]
    System { id: u64, source: std::io::Error },
}

impl ProcessError {
    const fn code(&self) -> ErrorCode {
        match self {
            Self::Launch(error) => error.code(),
            Self::TooMany => ErrorCode::TooMany,
            Self::Unknown { .. } => ErrorCode::NoSuchProcess,
            Self::Ended { .. } => ErrorCode::Ended,
            Self::NoInput { .. } | Self::NoTerminal { .. } | Self::NoSignal { .. } => ErrorCode::BadArgument,
            Self::System { .. } => ErrorCode::Failed,
        }
    }
}

/// Why an operation ended early: the client hears of the first, and is gone with the second.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// All of them.
pub(crate) struct Processes {
    launcher: Arc<Launcher>,
    /// Held while one is started: others wait for their turn, and nobody else does.
    starting: Mutex<u64>,
    table: Mutex<BTreeMap<u64, Arc<Process>>>,
}

impl Processes {
    pub(crate) const fn new(launcher: Arc<Launcher>) -> Self {
        Self { launcher, starting: Mutex::new(0), table: Mutex::new(BTreeMap::new()) }
    }

    /// Does what a client asks for, and answers.
    pub(crate) fn serve(&self, peer: &mut Peer, request: &ProcessRequest) -> Result<(), PeerError> {
        match self.act(peer, request) {
            Ok(()) => Ok(()),
            Err(Trouble::Process(error)) => {
                peer.reply(&Reply::Error { code: error.code(), message: error.to_string() })
            }
            Err(Trouble::Peer(error)) => Err(error),
        }
    }

    fn act(&self, peer: &mut Peer, request: &ProcessRequest) -> Result<(), Trouble> {
        let answer = match request {
            ProcessRequest::Start(request) => Reply::Process(self.start(request)?),
            ProcessRequest::List => {
                let all: Vec<_> = self.table().values().cloned().collect();
                all.iter().try_for_each(|process| peer.reply(&Reply::Process(process.info())))?;
                Reply::Done
            }
            ProcessRequest::Show { id } => Reply::Process(self.find(*id)?.info()),
            ProcessRequest::Attach { id } => return attach::attach(peer, self.find(*id)?.as_ref()),
            ProcessRequest::Feed { id, close } => return feed::feed(peer, self.find(*id)?.as_ref(), *close),
            ProcessRequest::Signal { id, signal } => {
                self.find(*id)?.signal(*signal)?;
                Reply::Done
            }
            ProcessRequest::Resize { id, size } => {
                self.find(*id)?.resize(*size)?;
                Reply::Done
            }
            ProcessRequest::Forget { id } => {
                let process = self.table().remove(id).ok_or(ProcessError::Unknown { id: *id })?;
                process.kill();
                Reply::Done
            }
        };
        Ok(peer.reply(&answer)?)
    }

    fn start(&self, request: &ExecRequest) -> Result<ProcessInfo, ProcessError> {
        let mut last = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_room()?;
        let process = Process::start(*last + 1, &self.launcher, request)?;
        *last += 1;
        let info = process.info();
        self.table().insert(*last, process);
        Ok(info)
    }

    /// Forgets those that ended, the oldest first, until there is room for one.
    fn make_room(&self) -> Result<(), ProcessError> {
        let mut table = self.table();
        while table.len() >= MAX_PROCESSES {
            let ended = table.iter().find(|(_, process)| process.has_ended()).map(|(id, _)| *id);
            table.remove(&ended.ok_or(ProcessError::TooMany)?);
        }
        Ok(())
    }

    fn find(&self, id: u64) -> Result<Arc<Process>, ProcessError> {
        self.table().get(&id).cloned().ok_or(ProcessError::Unknown { id })
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Process>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
