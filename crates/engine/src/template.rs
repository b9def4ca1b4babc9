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
//! snapshot than the tag has now, or that was never loaded because its starter was killed, is ended and replaced.

mod lock;
mod record;
mod start;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proto::control::{ControlError, ControlSocket, RefusalCode, ToVmm};
use store::{Removal, Snapshot, Status, Store, StoreError};
use types::{Dirs, Tag};

use crate::cancel::Cancel;
use crate::hearing::{Waited, hear};
use crate::pidfd::Process;
use crate::process::ProcessError;
use crate::programs::{Program, ProgramError};
use crate::{caller, console};
use lock::Held;
use record::RecordV1;

pub(crate) use start::adopt;

/// Beyond this a template that was told to stop is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How long a killed process may take to be gone.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);

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
}

impl Template {
    /// A connection that nobody else reads.
    pub(crate) fn another_connection(&self) -> Result<ControlSocket, TemplateError> {
        self.place.call()?.ok_or_else(|| TemplateError::Died { log: console::tail(&self.place.log()) })
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

    /// The template that runs and holds this snapshot.
    fn find(&self, snapshot: &str) -> Result<Option<Template>, TemplateError> {
        if self.call()?.is_none() {
            return Ok(None);
        }
        let Some(record) = RecordV1::read(&self.dir).filter(|record| record.snapshot == snapshot) else {
            return Ok(None);
        };
        let process = record.process().map_err(TemplateError::io("look for the process of", &self.dir))?;
        Ok(process.map(|process| Template { process, snapshot: record.snapshot, place: self.clone() }))
    }

    /// A new socket that listens here.
    fn listen(&self) -> Result<OwnedFd, TemplateError> {
        let path = self.socket();
        crate::vmdir::remove_file(&path).map_err(TemplateError::io("remove", &path))?;
        caller::listen(&path).map_err(TemplateError::io("listen on", &path))
    }

    fn call(&self) -> Result<Option<ControlSocket>, TemplateError> {
        caller::call(&self.socket()).map_err(TemplateError::io("call", &self.socket()))
    }

    /// Ends whatever runs here; true if something did.
    fn end(&self, _held: &Held) -> Result<bool, TemplateError> {
        let Some(control) = self.call()? else { return Ok(false) };
        let failed = TemplateError::io("end the template of", &self.dir);
        let process = RecordV1::read(&self.dir).map(|record| record.process()).transpose().map_err(&failed)?.flatten();
        // One that cannot be told is killed all the same.
        if let Err(error) = control.send(&ToVmm::Stop, &[]) {
            log::debug!("the template of {} was not told to stop: {error}", self.dir.display());
        }
        let Some(process) = process else { return self.hung_up(&control) };
        if process.wait(Instant::now() + STOP_PATIENCE).map_err(&failed)? {
            return Ok(true);
        }
        process.kill().map_err(&failed)?;
        if !process.wait(Instant::now() + DEATH_PATIENCE).map_err(&failed)? {
            return Err(TemplateError::Stuck { pid: process.pid() });
        }
        Ok(true)
    }

    /// One that was never loaded has no record; it has no children either, so its end is when its connections close.
    fn hung_up(&self, control: &ControlSocket) -> Result<bool, TemplateError> {
        let until = Instant::now() + STOP_PATIENCE;
        while !matches!(hear(control, until, None)?, Waited::Gone) {
            if Instant::now() >= until {
                let source = io::Error::from(io::ErrorKind::TimedOut);
                return Err(TemplateError::io("end the half-started template of", &self.dir)(source));
            }
        }
        Ok(true)
    }
}

/// The running template of a tag, or a new one. While the snapshot is being written its template is the one that was
/// branched; should that be gone, the snapshot is waited for.
pub(crate) fn template_of_status(
    tag: &Tag,
    status: Status,
    dirs: &Dirs,
    until: Instant,
    cancel: Option<&Cancel>,
) -> Result<Template, TemplateError> {
    let place = Place::new(dirs, tag);
    let snapshot = match status {
        Status::Ready(snapshot) => snapshot,
        Status::Writing(intent) => match place.find(&intent.id)? {
            Some(template) => return Ok(template),
            None => Store::new(dirs).wait_written(tag, until)?.into_ready(tag)?,
        },
        status @ Status::Failed(_) => status.into_ready(tag)?,
    };
    let found = place.find(&snapshot.manifest().id)?;
    found.map_or_else(|| template_of(&Program::Vmm.find()?, tag, &snapshot, dirs, cancel), Ok)
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

/// Ends the template of a tag; true if one ran. Its children go on.
///
/// # Errors
/// When it may still run.
pub fn stop_template(tag: &Tag, dirs: &Dirs) -> Result<bool, TemplateError> {
    let place = Place::new(dirs, tag);
    if !place.dir.exists() {
        return Ok(false);
    }
    let held = Held::take(&place.dir)?;
    let ran = place.end(&held)?;
    held.remove()?;
    Ok(ran)
}

/// Ends the templates of branches that nobody keeps any more: whoever was to write them was killed, and their tags are gone
/// or mean something else. Returns how many there were.
///
/// # Errors
/// When the directory of all cannot be read, or one of them may still run.
pub fn sweep_templates(dirs: &Dirs) -> Result<usize, TemplateError> {
    let all = dirs.run.join("templates");
    let entries = match fs::read_dir(&all) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>().map_err(TemplateError::io("list", &all))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(TemplateError::io("list", &all)(error)),
    };
    let mut ended = 0;
    for tag in entries.iter().filter_map(|entry| entry.file_name().to_str()?.parse::<Tag>().ok()) {
        let place = Place::new(dirs, &tag);
        let Some(held) = Held::try_take(&place.dir)? else { continue };
        let recorded = RecordV1::read(&place.dir).map(|record| record.snapshot);
        let wanted = match Store::new(dirs).status(&tag) {
            Ok(Status::Failed(_)) | Err(StoreError::Unknown { .. }) => false,
            Ok(status) => recorded.as_deref() == Some(status.id()),
            // Who cannot be told to be of no use stays.
            Err(_) => true,
        };
        if !wanted {
            ended += usize::from(place.end(&held)?);
            held.remove()?;
        }
    }
    Ok(ended)
}

/// Removes a snapshot and ends its template; returns all tags that went.
///
/// # Errors
/// When there is no such snapshot, or other snapshots are made of it.
pub fn remove_snapshot(tag: &Tag, removal: Removal, dirs: &Dirs) -> Result<Vec<Tag>, TemplateError> {
    let removed = Store::new(dirs).remove(tag, removal);
    let orphans = match &removed {
        Ok(tags) => &tags[..],
        // Its template may have been left behind.
        Err(StoreError::Unknown { tag }) => std::slice::from_ref(tag),
        Err(_) => &[],
    };
    // Afterwards: whoever starts one from now on finds no snapshot, and whoever was about to is waited for.
    for orphan in orphans {
        stop_template(orphan, dirs)?;
    }
    Ok(removed?)
}

#[cfg(test)]
mod tests;
