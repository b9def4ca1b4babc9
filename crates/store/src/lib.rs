//! Snapshots on disk.
//!
//! ```text
//! <data>/snapshots/
//!     .lock                 held while anything gets or loses its name
//!     .staging-3f…/         of a writer that holds its flock; garbage when nobody does
//!         intent.json       what it will be, and what it builds on
//!         state, memory.layer, disk-0.layer
//!     pyagent/              a snapshot that is ready: staged, synced, renamed
//!         manifest.json     what it is and which layers it needs, readable without the rest
//!         state             vCPUs and devices
//!     branch-7/
//!         failed.json       one that could not be written, and why
//! <data>/layers/<digest>    memory and disks, each layer once, named after its contents (crate `layer`)
//! ```
//!
//! What must hold:
//! - What has a tag's name is whole and never written to again. A snapshot is replaced by exchanging two names, and
//!   removed by first taking its name away, so whoever is killed, and whenever the power fails, leaves the old, the new,
//!   or garbage that the next writer or [`Store::gc`] removes.
//! - A manifest lists all layers down to the lowest. A parent is where a snapshot comes from, not what it needs.
//! - A layer goes when no manifest and no living writer names it, and only under the lock. Who reads needs no lock.
//!
//! Nothing here knows processes: whether a template runs from a snapshot is the engine's business.

#![forbid(unsafe_code)]

mod compact;
mod error;
mod gc;
mod import;
mod info;
mod manifest;
mod open;
mod pool;
mod remove;
mod stage;
mod status;
mod steps;
mod sweep;
mod verify;

use std::path::{Path, PathBuf};

use pool::Pool;
use types::{Dirs, Tag};

pub use error::StoreError;
pub use gc::{Collected, Garbage};
pub use import::Import;
pub use info::{Ancestor, Info};
pub use manifest::{BaseImage, DiskRef, FORMAT, LayerRef, MAX_CHAIN, Manifest, Parent, StateRef, Stored};
pub use open::{DiskFiles, Files, Snapshot};
pub use remove::Removal;
pub use stage::{Described, Existing, Origin, Staged, Under};
pub use status::{Failure, Intent, Listed, Status};
pub use verify::{Finding, Verified};

/// The snapshots of one user.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
    pool: Pool,
}

impl Store {
    /// Where the snapshots are; nothing is created or looked at yet.
    #[must_use]
    pub fn new(dirs: &Dirs) -> Self {
        Self { dir: dirs.data.join("snapshots"), pool: Pool::new(dirs.data.join("layers")) }
    }

    /// Where a snapshot is, if there is one.
    #[must_use]
    pub fn path(&self, tag: &Tag) -> PathBuf {
        self.dir.join(tag.as_str())
    }

    /// Where a layer is, if there is one.
    #[must_use]
    pub fn layer_path(&self, digest: &layer::Digest) -> PathBuf {
        self.pool.path(digest)
    }

    /// An empty place for a new snapshot; gone when dropped without [`Staged::commit`]. What it builds on stays as long.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when the tag is taken and may not be replaced, which is checked again at the end, and
    /// [`StoreError::Writing`] when it is about to be; [`StoreError::TooDeep`] when nothing more can lie over what it
    /// builds on.
    pub fn stage(&self, tag: &Tag, existing: Existing, origin: Origin) -> Result<Staged, StoreError> {
        Staged::create(self, tag, existing, origin)
    }

    /// Where they all are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

#[cfg(test)]
mod tests;
