//! How far a snapshot is: being written, ready, or never to be.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use layer::Digest;
use serde::{Deserialize, Serialize};
use types::Tag;

use crate::manifest::Parent;
use crate::open::{MANIFEST, read_bounded};
use crate::pool::open_plain;
use crate::{Snapshot, Store, StoreError, sweep};

pub(crate) const INTENT: &str = "intent.json";
pub(crate) const FAILED: &str = "failed.json";

/// How often a list is begun anew because somebody finished meanwhile.
const MAX_TRIES: usize = 5;

/// How far a snapshot is.
#[derive(Debug)]
pub enum Status {
    /// It can be forked.
    Ready(Snapshot),
    /// Somebody writes it.
    Writing(Intent),
    /// Somebody could not.
    Failed(Failure),
}

impl Status {
    /// The snapshot, if it is ready.
    ///
    /// # Errors
    /// [`StoreError::Writing`] or [`StoreError::Failed`] when it is not.
    pub fn into_ready(self, tag: &Tag) -> Result<Snapshot, StoreError> {
        match self {
            Self::Ready(snapshot) => Ok(snapshot),
            Self::Writing(_) => Err(StoreError::Writing { tag: tag.clone() }),
            Self::Failed(failure) => Err(StoreError::Failed { tag: tag.clone(), reason: failure.reason }),
        }
    }
}

/// What a writer is about to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// What it shall be called.
    pub tag: Tag,
    /// The id it will have.
    pub id: String,
    /// Since when, in seconds since 1970.
    pub created_unix: u64,
    /// The snapshot it descends from.
    pub parent: Option<Parent>,
    /// What it is made of otherwise.
    pub branched_from: Option<String>,
    /// Of a branch of a sandbox that has a network: where what is forked from it may connect to, as it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Box<str>>,
    /// The layers that will lie under its own: nobody may remove them meanwhile.
    pub(crate) under: Vec<Digest>,
}

/// What could not be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What it should have been.
    pub intent: Intent,
    /// Why it is not.
    pub reason: String,
}

/// A tag, with how far its snapshot is or with what is wrong with it.
pub type Listed = (Tag, Result<Status, StoreError>);

impl Store {
    /// How far the snapshot of a tag is. One that is ready counts, also while another is written to take its place.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] when there is none; otherwise what is wrong with it.
    pub fn status(&self, tag: &Tag) -> Result<Status, StoreError> {
        let path = self.path(tag);
        match Snapshot::open(&path, &self.pool, tag) {
            Ok(snapshot) => Ok(Status::Ready(snapshot)),
            Err(StoreError::Unknown { .. }) => match self.writer_of(tag)? {
                Some(intent) => Ok(Status::Writing(intent)),
                // Who has just finished is not writing any more.
                None => Snapshot::open(&path, &self.pool, tag).map(Status::Ready),
            },
            Err(error) => match (read::<Failure>(&path.join(FAILED))?, self.writer_of(tag)?) {
                (Some(_), Some(intent)) => Ok(Status::Writing(intent)),
                (Some(failure), None) => Ok(Status::Failed(failure)),
                (None, _) => Err(error),
            },
        }
    }

    /// The snapshot of a tag, if it is ready. Only its manifest is read.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::Writing`] or [`StoreError::Failed`] when there is none; otherwise what is
    /// wrong with it.
    pub fn get(&self, tag: &Tag) -> Result<Snapshot, StoreError> {
        self.status(tag)?.into_ready(tag)
    }

    /// Says before something is done for its sake whether a new snapshot could have this tag now; it is told again when it is
    /// staged.
    ///
    /// # Errors
    /// [`StoreError::Exists`] or [`StoreError::Writing`] when it could not.
    pub fn expect_free(&self, tag: &Tag) -> Result<(), StoreError> {
        if self.writer_of(tag)?.is_some() {
            return Err(StoreError::Writing { tag: tag.clone() });
        }
        self.expect_no_snapshot(tag)
    }

    /// A tag is free when nothing has it, or only the word that it could not be written.
    pub(crate) fn expect_no_snapshot(&self, tag: &Tag) -> Result<(), StoreError> {
        let path = self.path(tag);
        let free = !path.exists() || is_failed(&path);
        if free { Ok(()) } else { Err(StoreError::Exists { tag: tag.clone() }) }
    }

    /// All tags in order, each as far as it is; those that lack a file are damaged. Changes nothing.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, StoreError> {
        // In this order: who finishes in between is in both.
        let mut tags: Vec<Tag> = self.writers()?.into_iter().map(|intent| intent.tag).collect();
        tags.extend(self.tags()?);
        tags.sort();
        tags.dedup();
        let listed = tags.into_iter().map(|tag| (self.complete(&tag), tag));
        // One that was removed meanwhile is not there.
        let there = listed.filter(|(status, _)| !matches!(status, Err(StoreError::Unknown { .. })));
        Ok(there.map(|(status, tag)| (tag, status)).collect())
    }

    fn complete(&self, tag: &Tag) -> Result<Status, StoreError> {
        let status = self.status(tag)?;
        if let Status::Ready(snapshot) = &status {
            snapshot.is_complete()?;
        }
        Ok(status)
    }

    /// Every name that is a tag's, in order.
    pub(crate) fn tags(&self) -> Result<Vec<Tag>, StoreError> {
        let failed = StoreError::io("list", &self.dir);
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries.collect::<Result<Vec<_>, _>>().map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut tags: Vec<Tag> = entries.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        tags.sort();
        Ok(tags)
    }

    /// What is being written by those who live.
    pub(crate) fn writers(&self) -> Result<Vec<Intent>, StoreError> {
        let mut tries = MAX_TRIES;
        loop {
            let living = sweep::living(&self.dir)?;
            let intents = living.iter().map(|path| read(&path.join(INTENT))).collect::<Result<Vec<_>, _>>()?;
            tries -= 1;
            // One without has begun or finished in this instant.
            if tries == 0 || intents.iter().all(Option::is_some) {
                return Ok(intents.into_iter().flatten().collect());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn writer_of(&self, tag: &Tag) -> Result<Option<Intent>, StoreError> {
        Ok(self.writers()?.into_iter().find(|intent| intent.tag == *tag))
    }
}

/// Whether a tag's directory only says that it could not be written.
pub(crate) fn is_failed(path: &Path) -> bool {
    path.join(FAILED).exists() && !path.join(MANIFEST).exists()
}

/// One of our small files; `None` when it is not there.
fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Option<T>, StoreError> {
    let failed = StoreError::io("read", path);
    let file = match open_plain(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let bytes = read_bounded(file).map_err(&failed)?.ok_or_else(|| failed(io::ErrorKind::FileTooLarge.into()))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(error.into()))
}
