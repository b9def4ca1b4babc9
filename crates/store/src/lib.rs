//! Snapshots on disk.
//!
//! ```text
//! <data>/snapshots/
//!     .lock                 held while a staging directory is made or swept, so that none is swept before it is locked
//!     .staging-3f…/         of a writer that holds its flock; garbage when nobody does
//!     pyagent/              one snapshot, complete: staged, synced, renamed
//!         manifest.json     what it is and what it needs, readable without the rest
//!         state             vCPUs and devices
//!         memory            guest memory, sparse, at guest-physical offsets
//!         disk-0.layer      what the guest had written to its first disk, over the image that the manifest names
//! ```
//!
//! What has a tag's name is whole and never written to again. A snapshot is replaced by exchanging two names, and
//! removed by first taking its name away, so whoever is killed leaves the old, the new, or garbage that the next writer
//! sweeps. Nothing here knows processes: whether a template runs from a snapshot is the engine's business.

#![forbid(unsafe_code)]

mod error;
mod manifest;
mod open;
mod stage;
mod sweep;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use types::{Dirs, Tag};

pub use error::StoreError;
pub use manifest::{BaseImage, FORMAT, Manifest, Sizes};
pub use open::{Files, Snapshot};
pub use stage::{Described, Existing, Staged};

/// A tag, with its snapshot or with what is wrong with it.
pub type Listed = (Tag, Result<Snapshot, StoreError>);

/// The snapshots of one user.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Where the snapshots are; nothing is created or looked at yet.
    #[must_use]
    pub fn new(dirs: &Dirs) -> Self {
        Self { dir: dirs.data.join("snapshots") }
    }

    /// Where a snapshot is, if there is one.
    #[must_use]
    pub fn path(&self, tag: &Tag) -> PathBuf {
        self.dir.join(tag.as_str())
    }

    /// Opens a snapshot and checks that it is complete.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when there is none; otherwise what is wrong with it.
    pub fn get(&self, tag: &Tag) -> Result<Snapshot, StoreError> {
        Snapshot::open(&self.path(tag), tag)
    }

    /// All tags in order. Changes nothing.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let failed = StoreError::io("list", &self.dir);
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries.collect::<Result<Vec<_>, _>>().map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let names = entries.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut tags: Vec<Tag> = names.collect();
        tags.sort();
        let opened = tags.into_iter().map(|tag| (self.get(&tag), tag));
        // One that was removed meanwhile is not there.
        let there = opened.filter(|(snapshot, _)| !matches!(snapshot, Err(StoreError::Unknown { .. })));
        Ok(there.map(|(snapshot, tag)| (tag, snapshot)).collect())
    }

    /// Removes a snapshot, whole or damaged.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when there is none, [`StoreError::HasChildren`] when others are made of it.
    pub fn remove(&self, tag: &Tag) -> Result<(), StoreError> {
        let _guard = sweep::guard(&self.dir)?;
        let made_of_it = |other: &Manifest| other.parent.as_ref() == Some(tag);
        let others = self.list()?.into_iter().filter_map(|(_, snapshot)| snapshot.ok());
        let children: Vec<Tag> =
            others.filter(|other| made_of_it(other.manifest())).map(|other| other.manifest().tag.clone()).collect();
        if !children.is_empty() {
            return Err(StoreError::HasChildren { tag: tag.clone(), children });
        }
        let nameless = self.dir.join(sweep::staging_name().map_err(StoreError::io("name a directory in", &self.dir))?);
        match fs::rename(self.path(tag), &nameless) {
            Ok(()) => sweep::remove_tree(&nameless),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StoreError::Unknown { tag: tag.clone() }),
            Err(error) => Err(StoreError::io("remove", &self.path(tag))(error)),
        }
    }

    /// An empty place for a new snapshot; gone when dropped without [`Staged::commit`].
    ///
    /// # Errors
    /// [`StoreError::Exists`] when the tag is taken and may not be replaced; that is checked again at the end.
    pub fn stage(&self, tag: &Tag, existing: Existing) -> Result<Staged, StoreError> {
        if existing == Existing::Keep && self.path(tag).exists() {
            return Err(StoreError::Exists { tag: tag.clone() });
        }
        Staged::create(&self.dir, tag, existing)
    }

    /// Where they all are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

#[cfg(test)]
mod tests;
