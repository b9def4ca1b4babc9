//! The process that children are forked from: found by its tag, or started from the store.
//!
//! ```text
//! run/templates/<tag>/                flock held by whoever starts or stops the template, never by the template
//!                     control.sock    it listens here; whoever can call it finds it alive
//!                     template.json   which snapshot it holds and which process it is; there once it can spawn
//!                     vmm.log
//! ```
//!
//! A template belongs to nobody: it survives who started it and stays until it is stopped. One that holds another
//! snapshot than the tag has now, or that was never loaded because its starter was killed, is ended and replaced; and so is
//! one that was branched and cannot make its children users of their own, once the snapshot is in the store.

mod end;
mod lock;
mod record;
mod start;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proto::control::{self, ControlError, ControlSocket, RefusalCode, VmUid};
use store::{Snapshot, Status, Store, StoreError};
use types::{Dirs, Tag};

use crate::cancel::Cancel;
use crate::pidfd::Process;
use crate::process::ProcessError;
use crate::programs::{Program, ProgramError};
use crate::{caller, console};
use record::RecordV1;

pub(crate) use end::{end_unwanted, stop_template_of};
pub use end::{remove_snapshot, stop_template, sweep_templates};
pub(crate) use record::Made;
pub(crate) use start::{adopt, tops};

/// The longest pause between two looks at a snapshot that is being written.
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// Why there is no template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The VMM is not installed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The snapshot cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The process could not be started.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The template could not be spoken to.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The template does not take the snapshot.
    #[error("{message}")]
    Refused {
        /// Which case it is.
        code: RefusalCode,
        /// The VMM's words.
        message: String,
    },
    /// It died before it was loaded.
    #[error("the template died; its log's last lines:\n{log}")]
    Died {
        /// The log's last lines.
        log: String,
    },
    /// It was not loaded in time.
    #[error("the template was not loaded within {} s; its log's last lines:\n{log}", limit.as_secs())]
    Slow {
        /// The time limit.
        limit: Duration,
        /// The log's last lines.
        log: String,
    },
    /// It was killed and is still there.
    #[error("the template (process {pid}) was killed and does not end; the host may be waiting for a disk")]
    Stuck {
        /// Its process.
        pid: i32,
    },
    /// A socket's path would be cut short.
    #[error("{} is too long a path for a socket; use a shorter tag, or set FORKD_HOME to a shorter path", path.display())]
    TooLong {
        /// The socket's path.
        path: PathBuf,
    },
    /// It was called off.
    #[error("interrupted while the template was being loaded")]
    Cancelled,
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

impl TemplateError {
    fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path: path.clone(), source }
    }
}

/// A template that can spawn.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) process: Process,
    /// The id of the snapshot it holds.
    pub(crate) snapshot: String,
    pub(crate) place: Place,
    /// How many tops each child needs.
    pub(crate) tops: u8,
    /// As whom it runs, if that is not who started it: then its children are of the same user.
    pub(crate) uid: Option<VmUid>,
}

impl Template {
    /// A process that it says is its child, if it is. One that runs as a VM's user could say anything.
    pub(crate) fn child(&self, pid: i32) -> io::Result<Option<Process>> {
        Process::open_child_of(self.process.pid(), pid)
    }

    /// Whether it serves forks of a snapshot that is in the store. One that was branched runs as its source's user, and so
    /// would all that is forked from it: as soon as there is another way to have a template, it is used.
    const fn is_for_stored(&self) -> bool {
        self.uid.is_none()
    }

    /// A connection that nobody else reads.
    pub(crate) fn another_connection(&self) -> Result<ControlSocket, TemplateError> {
        self.place.call()?.ok_or_else(|| self.place.died())
    }
}

/// Where the files of a tag's template are.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    dir: PathBuf,
}

impl Place {
    pub(crate) fn new(dirs: &Dirs, tag: &Tag) -> Self {
        Self { dir: dirs.run.join("templates").join(tag.as_str()) }
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("vmm.log")
    }

    /// What is to be said of a template that died.
    pub(crate) fn died(&self) -> TemplateError {
        TemplateError::Died { log: console::tail(&self.log()) }
    }

    /// The template that runs and holds this snapshot.
    fn find(&self, snapshot: &str) -> Result<Option<Template>, TemplateError> {
        if self.call()?.is_none() {
            return Ok(None);
        }
        let Some(record) = RecordV1::read(&self.dir).filter(|record| record.snapshot == snapshot) else {
            return Ok(None);
        };
        let process = record.process().map_err(TemplateError::io("look for the process of", &self.dir))?;
        let RecordV1 { snapshot, tops, uid, .. } = record;
        Ok(process.map(|process| Template { process, snapshot, place: self.clone(), tops, uid }))
    }

    /// A new socket that listens here.
    fn listen(&self) -> Result<OwnedFd, TemplateError> {
        let path = self.socket();
        crate::vmdir::remove_file(&path).map_err(TemplateError::io("remove", &path))?;
        control::listen(&path).map_err(TemplateError::io("listen on", &path))
    }

    fn call(&self) -> Result<Option<ControlSocket>, TemplateError> {
        caller::call(&self.socket()).map_err(TemplateError::io("call", &self.socket()))
    }
}

/// The running template of a tag, or a new one. While the snapshot is being written its template is the one that was
/// branched, which may be about to be there; should none come, the snapshot is waited for.
pub(crate) fn template_of_status(
    tag: &Tag,
    mut status: Status,
    dirs: &Dirs,
    until: Instant,
    cancel: Option<&Cancel>,
) -> Result<Template, TemplateError> {
    let (place, mut pause) = (Place::new(dirs, tag), Duration::from_millis(1));
    loop {
        let found = if matches!(status, Status::Failed(_)) { None } else { place.find(status.id())? };
        let serves = |template: &Template| template.is_for_stored() || matches!(status, Status::Writing(_));
        if let Some(template) = found.filter(serves) {
            return Ok(template);
        }
        let left = until.saturating_duration_since(Instant::now());
        if !matches!(status, Status::Writing(_)) || left.is_zero() {
            break;
        }
        let failed = TemplateError::io("wait for the template of", &place.dir);
        if Cancel::first(&[cancel], Instant::now() + pause.min(left)).map_err(failed)?.is_some() {
            return Err(TemplateError::Cancelled);
        }
        pause = (pause * 2).min(MAX_PAUSE);
        status = Store::new(dirs).status(tag)?;
    }
    template_of(&Program::Vmm.find()?, tag, &status.into_ready(tag)?, dirs, cancel)
}

/// The same with this program, if a new one is needed.
pub(crate) fn template_of(
    program: &Path,
    tag: &Tag,
    snapshot: &Snapshot,
    dirs: &Dirs,
    cancel: Option<&Cancel>,
) -> Result<Template, TemplateError> {
    start::start(program, &Place::new(dirs, tag), snapshot, dirs, cancel)
}

/// Makes sure that a template of this tag runs, so that the next fork finds it.
///
/// # Errors
/// When there is no such snapshot, or its template does not load.
pub fn start_template(tag: &Tag, dirs: &Dirs) -> Result<(), TemplateError> {
    let status = Store::new(dirs).status(tag)?;
    template_of_status(tag, status, dirs, Instant::now(), None).map(|_| ())
}

/// Whether a template of this snapshot runs.
///
/// # Errors
/// When its socket cannot be called.
pub fn template_runs(tag: &Tag, snapshot_id: &str, dirs: &Dirs) -> Result<bool, TemplateError> {
    Ok(Place::new(dirs, tag).find(snapshot_id)?.is_some())
}

#[cfg(test)]
mod tests;
