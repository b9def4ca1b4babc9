//! The right to start or stop the template of one tag: a lock on its directory, which may be removed by who holds it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::TemplateError;
use crate::vmdir::{lock, remove};

/// How often the directory may be removed under us before we stop believing that it is by chance.
const MAX_REMOVALS: usize = 100;

/// The directory, locked.
#[derive(Debug)]
pub(super) struct Held {
    path: PathBuf,
    _lock: File,
}

impl Held {
    /// Makes the directory and waits for the right to it.
    pub(super) fn take(path: &Path) -> Result<Self, TemplateError> {
        let failed = TemplateError::io("lock", path);
        for _ in 0..MAX_REMOVALS {
            DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(&failed)?;
            let opened = match File::open(path) {
                Ok(opened) => opened,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            lock(&opened, FlockOperation::LockExclusive).map_err(&failed)?;
            if is_still(path, &opened).map_err(&failed)? {
                return Ok(Self { path: path.into(), _lock: opened });
            }
        }
        Err(failed(io::ErrorKind::ResourceBusy.into()))
    }

    /// The right to it, if it is there and nobody has the right.
    pub(super) fn try_take(path: &Path) -> Result<Option<Self>, TemplateError> {
        let failed = TemplateError::io("lock", path);
        let opened = match File::open(path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match lock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let still = is_still(path, &opened).map_err(&failed)?;
        Ok(still.then(|| Self { path: path.into(), _lock: opened }))
    }

    /// Removes the directory and gives the right up.
    pub(super) fn remove(self) -> Result<(), TemplateError> {
        remove(&self.path).map_err(TemplateError::io("remove", &self.path))
    }
}

/// Whether the path still names what was opened.
fn is_still(path: &Path, opened: &File) -> io::Result<bool> {
    let opened = opened.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
