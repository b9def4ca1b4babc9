//! A snapshot being written: files without a name that anybody looks for, until all of it is on the disk.

mod commit;
mod origin;

use std::fs::{self, File};
use std::io::Write as _;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use types::{GuestMemorySize, Interpreter, RecipeName, Tag, VcpuCount};

use crate::open::STATE;
use crate::status::{FAILED, Failure, INTENT, Intent, is_failed};
use crate::steps::reached;
use crate::{Store, StoreError, pool, sweep};
use origin::Foundation;

pub use origin::{Origin, Under};

const MEMORY: &str = "memory.layer";

/// What becomes of a snapshot that has the tag already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and the new one is refused.
    Keep,
    /// The new one takes its place.
    Replace,
}

/// What a writer knows about a snapshot that its files do not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// What the disk image was built from.
    pub recipe: Option<RecipeName>,
    /// `uname -r` of the guest.
    pub kernel: String,
    /// The agent's version.
    pub agent: String,
    /// Virtual CPUs.
    pub vcpus: VcpuCount,
    /// Memory.
    pub memory: GuestMemorySize,
    /// Whether the guest has a network card.
    pub network: bool,
    /// Where what is made of it may connect to, if nobody says otherwise.
    pub egress: Option<Box<str>>,
    /// The interpreter that was warmed.
    pub interpreter: Option<Interpreter>,
    /// TCP ports that something listens on in it.
    pub ports: Vec<NonZeroU16>,
    /// For how long the guest did not run.
    pub pause_us: Option<u64>,
}

/// A snapshot without a name; gone when dropped. Whoever looks meanwhile finds its tag being written.
#[derive(Debug)]
pub struct Staged {
    store: Store,
    intent: Intent,
    existing: Existing,
    foundation: Foundation,
    path: PathBuf,
    /// Holds the lock that keeps it from being swept.
    _lock: File,
}

impl Staged {
    pub(crate) fn create(store: &Store, tag: &Tag, existing: Existing, origin: Origin) -> Result<Self, StoreError> {
        let parent = origin.parent.filter(|_| origin.under.descends());
        let foundation = Foundation::lay(origin.under)?;
        let intent = Intent {
            tag: tag.clone(),
            id: sweep::random_hex::<16>().map_err(StoreError::io("name a snapshot in", &store.dir))?,
            created_unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            parent,
            branched_from: origin.branched_from,
            egress: origin.egress,
            under: foundation.layers().map(|layer| layer.digest).collect(),
        };
        let _guard = sweep::guard(&store.dir)?;
        store.pool.make()?;
        sweep::each_dead(&store.dir, sweep::remove_tree)?;
        if existing == Existing::Keep && store.writer_of(tag)?.is_some() {
            return Err(StoreError::Writing { tag: tag.clone() });
        }
        let (path, lock) = sweep::make(&store.dir)?;
        let staged = Self { store: store.clone(), intent, existing, foundation, path, _lock: lock };
        staged.expect_free()?;
        staged.expect_foundation()?;
        staged.write_intent()?;
        reached("staged");
        Ok(staged)
    }

    /// Says what its layers lie on, where that was left for later. From now on it stays.
    ///
    /// # Errors
    /// [`StoreError::TooDeep`] when nothing more can lie over it; [`StoreError::Damaged`] when it is not there.
    pub fn lay(&mut self, under: Under) -> Result<(), StoreError> {
        self.intent.parent.take_if(|_| !under.descends());
        self.foundation = Foundation::lay(under)?;
        self.intent.under = self.foundation.layers().map(|layer| layer.digest).collect();
        let _guard = sweep::guard(&self.store.dir)?;
        self.expect_foundation()?;
        self.write_intent()
    }

    /// Whoever reads it reads all of it.
    fn write_intent(&self) -> Result<(), StoreError> {
        self.write("intent.new", &self.intent)?;
        let (new, path) = (self.path.join("intent.new"), self.path.join(INTENT));
        fs::rename(&new, &path).map_err(StoreError::io("put in place", &path))
    }

    /// The id that the snapshot will have.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.intent.id
    }

    /// What it will be.
    #[must_use]
    pub const fn intent(&self) -> &Intent {
        &self.intent
    }

    /// The empty file for the state, open for reading and writing.
    ///
    /// # Errors
    /// When it cannot be made, or was made before.
    pub fn state(&self) -> Result<File, StoreError> {
        self.file(STATE)
    }

    /// The empty file for the layer of the memory.
    ///
    /// # Errors
    /// As [`Staged::state`].
    pub fn memory(&self) -> Result<File, StoreError> {
        self.file(MEMORY)
    }

    /// The empty file for the layer of a disk.
    ///
    /// # Errors
    /// As [`Staged::state`].
    pub fn layer(&self, disk: usize) -> Result<File, StoreError> {
        self.file(&disk_name(disk))
    }

    /// How many disks it has.
    #[must_use]
    pub fn disk_count(&self) -> usize {
        self.foundation.disks.len()
    }

    /// Whether its layer of the memory lies on others.
    #[must_use]
    pub const fn lies_on_memory(&self) -> bool {
        !self.foundation.memory.is_empty()
    }

    /// Removes what was written so far, for another try.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn empty(&self) -> Result<(), StoreError> {
        let failed = StoreError::io("list", &self.path);
        for entry in fs::read_dir(&self.path).map_err(&failed)? {
            let path = entry.map_err(&failed)?.path();
            if !path.ends_with(INTENT) {
                fs::remove_file(&path).map_err(StoreError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Leaves a word under the tag on why there is no snapshot, unless one has it.
    ///
    /// # Errors
    /// When that cannot be written; then nothing is left.
    pub fn fail(self, reason: &str) -> Result<(), StoreError> {
        self.tell(reason)
    }

    fn tell(&self, reason: &str) -> Result<(), StoreError> {
        let _guard = sweep::guard(&self.store.dir)?;
        let target = self.store.path(&self.intent.tag);
        if target.exists() && !is_failed(&target) {
            return Ok(());
        }
        // First of all makes room: it may be what was missing.
        self.empty()?;
        self.write(FAILED, &Failure { intent: self.intent.clone(), reason: reason.into() })?;
        pool::sync(&self.path.join(FAILED))?;
        pool::sync(&self.path)?;
        self.put_in_place(&target)?;
        self.tidy(&target);
        Ok(())
    }

    fn file(&self, name: &str) -> Result<File, StoreError> {
        let path = self.path.join(name);
        File::options().read(true).write(true).create_new(true).open(&path).map_err(StoreError::io("create", &path))
    }

    fn write(&self, name: &str, what: &impl serde::Serialize) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(what).expect("it holds only numbers, texts and lists of them");
        self.file(name)?.write_all(&text).map_err(StoreError::io("write", &self.path.join(name)))
    }

    /// The caller holds the guard.
    fn expect_free(&self) -> Result<(), StoreError> {
        match self.existing {
            Existing::Keep => self.store.expect_no_snapshot(&self.intent.tag),
            Existing::Replace => Ok(()),
        }
    }

    /// What is to lie below must be there; from now on it stays. The caller holds the guard.
    fn expect_foundation(&self) -> Result<(), StoreError> {
        self.foundation.layers().try_for_each(|layer| {
            let there = self.store.pool.file(layer).map(|_| ());
            let parent = self.intent.parent.as_ref().map_or(&self.intent.tag, |parent| &parent.tag);
            there.map_err(|problem| crate::open::damaged(parent, &crate::open::layer_name(&layer.digest), problem))
        })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Err(error) = sweep::remove_tree(&self.path) {
            log::warn!("{} is left behind: {error}", self.path.display());
        }
    }
}

fn disk_name(disk: usize) -> String {
    format!("disk-{disk}.layer")
}
