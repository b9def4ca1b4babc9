//! The ends of templates: of one that is told to, and of those that nobody needs.
//!
//! A template is ended for what it holds, not for the tag it is found by: by the time somebody gets to it, another snapshot
//! may have the tag, and a template of its own there.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use proto::control::{ControlSocket, ToVmm};
use store::{Removal, Status, Store, StoreError};
use types::{Dirs, Tag};

use super::lock::Held;
use super::record::RecordV1;
use super::{Place, TemplateError};
use crate::hearing::{Waited, hear};

/// Beyond this a template that was told to stop is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How long a killed process may take to be gone.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);

impl Place {
    /// Ends whatever runs here; true if something did.
    pub(super) fn end(&self, _held: &Held) -> Result<bool, TemplateError> {
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

    /// Ends what runs here if `doomed` says so of the snapshot it holds, and tidies up; true if something ran. One that was
    /// never loaded holds none, and whoever started it was killed, or would still hold the right.
    fn end_if(&self, held: Held, doomed: impl FnOnce(Option<&str>) -> bool) -> Result<bool, TemplateError> {
        let recorded = RecordV1::read(&self.dir).map(|record| record.snapshot);
        if !doomed(recorded.as_deref()) {
            return Ok(false);
        }
        let ran = self.end(&held)?;
        held.remove()?;
        Ok(ran)
    }

    /// The right to end what runs here; `None` when nothing does.
    fn hold_if_there(&self) -> Result<Option<Held>, TemplateError> {
        self.dir.exists().then(|| Held::take(&self.dir)).transpose()
    }
}

/// Ends the template of a tag, whatever it holds; true if one ran. Its children go on.
///
/// # Errors
/// When it may still run.
pub fn stop_template(tag: &Tag, dirs: &Dirs) -> Result<bool, TemplateError> {
    let place = Place::new(dirs, tag);
    place.hold_if_there()?.map_or(Ok(false), |held| place.end_if(held, |_| true))
}

/// Ends the template of a tag if it holds this snapshot, or none.
pub(crate) fn stop_template_of(tag: &Tag, snapshot: &str, dirs: &Dirs) -> Result<bool, TemplateError> {
    let place = Place::new(dirs, tag);
    let doomed = |holds: Option<&str>| holds.is_none_or(|holds| holds == snapshot);
    place.hold_if_there()?.map_or(Ok(false), |held| place.end_if(held, doomed))
}

/// Ends the template of a tag unless it holds what the tag means now.
pub(crate) fn end_unwanted(tag: &Tag, dirs: &Dirs) -> Result<bool, TemplateError> {
    let place = Place::new(dirs, tag);
    place.hold_if_there()?.map_or(Ok(false), |held| place.end_if(held, |holds| !is_wanted(tag, holds, dirs)))
}

/// Whether the tag means what a template holds. To be asked by who holds the right to end it: a template that is made
/// meanwhile could not be told from one that is left.
fn is_wanted(tag: &Tag, holds: Option<&str>, dirs: &Dirs) -> bool {
    match Store::new(dirs).status(tag) {
        Ok(Status::Failed(_)) | Err(StoreError::Unknown { .. }) => false,
        Ok(status) => holds == Some(status.id()),
        // Who cannot be told to be of no use stays.
        Err(_) => true,
    }
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
        ended += usize::from(place.end_if(held, |holds| !is_wanted(&tag, holds, dirs))?);
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
        end_unwanted(orphan, dirs)?;
    }
    Ok(removed?)
}
