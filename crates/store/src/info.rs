//! Where a snapshot comes from, what is made of it, and what it takes.

use types::Tag;

use crate::manifest::{Manifest, Parent};
use crate::remove::Family;
use crate::{Snapshot, Status, Store, StoreError};

/// All about a snapshot.
#[derive(Debug)]
pub struct Info {
    /// How far it is; what it says about itself when it is ready.
    pub status: Status,
    /// What it descends from, the first of all first.
    pub ancestors: Vec<Ancestor>,
    /// What is made of it, or is about to be.
    pub dependants: Vec<Tag>,
}

/// What a snapshot descends from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// What it was called.
    pub tag: Tag,
    /// Whether it is still there; otherwise what it descends from is not known.
    pub is_there: bool,
}

impl Info {
    /// What it says about itself, when it is ready.
    #[must_use]
    pub fn manifest(&self) -> Option<&Manifest> {
        match &self.status {
            Status::Ready(snapshot) => Some(snapshot.manifest()),
            Status::Writing(_) | Status::Failed(_) => None,
        }
    }

    /// The snapshot it descends from.
    #[must_use]
    pub fn parent(&self) -> Option<&Parent> {
        self.status.parent()
    }
}

impl Status {
    /// The snapshot it descends from.
    #[must_use]
    pub fn parent(&self) -> Option<&Parent> {
        match self {
            Self::Ready(snapshot) => snapshot.manifest().parent.as_ref(),
            Self::Writing(intent) => intent.parent.as_ref(),
            Self::Failed(failure) => failure.intent.parent.as_ref(),
        }
    }

    /// Which one it is.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Ready(snapshot) => &snapshot.manifest().id,
            Self::Writing(intent) => &intent.id,
            Self::Failed(failure) => &failure.intent.id,
        }
    }

    /// Since when, in seconds since 1970.
    #[must_use]
    pub fn created_unix(&self) -> u64 {
        match self {
            Self::Ready(snapshot) => snapshot.manifest().created_unix,
            Self::Writing(intent) => intent.created_unix,
            Self::Failed(failure) => failure.intent.created_unix,
        }
    }

    /// The snapshot, if it is ready.
    #[must_use]
    pub const fn ready(&self) -> Option<&Snapshot> {
        match self {
            Self::Ready(snapshot) => Some(snapshot),
            Self::Writing(_) | Self::Failed(_) => None,
        }
    }

    /// One word for it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Ready(_) => "ready",
            Self::Writing(_) => "writing",
            Self::Failed(_) => "failed",
        }
    }
}

impl Store {
    /// All about a snapshot. Changes nothing.
    ///
    /// # Errors
    /// As [`Store::status`].
    pub fn info(&self, tag: &Tag) -> Result<Info, StoreError> {
        let status = self.status(tag)?;
        let family = Family::of(self)?;
        let mut ancestors = family.ancestors(status.parent());
        ancestors.reverse();
        let dependants = family.children(tag);
        Ok(Info { status, ancestors, dependants })
    }

    /// All that is made of a snapshot, directly or not: what [`crate::Removal::Cascade`] would take along. None for a tag
    /// that nothing has. Changes nothing.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn descendants(&self, tag: &Tag) -> Result<Vec<Tag>, StoreError> {
        Ok(Family::of(self)?.descendants(tag))
    }
}
