//! A snapshot being written: files without a name that anybody looks for, until all of it is on the disk.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use types::{GuestMemorySize, Interpreter, RecipeName, Tag, VcpuCount};

use crate::manifest::{BaseImage, FORMAT, Manifest, Sizes};
use crate::open::{MANIFEST, MEMORY, STATE, layer_name};
use crate::{Snapshot, StoreError, sweep};

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
    /// The snapshot whose memory and disk lie under this one's.
    pub parent: Option<Tag>,
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
    /// The image under each disk layer, in order.
    pub images: Vec<PathBuf>,
    /// Whether the guest has a network card.
    pub network: bool,
    /// The interpreter that was warmed.
    pub interpreter: Option<Interpreter>,
    /// Bytes of guest memory that are not zero.
    pub memory_used: u64,
    /// Bytes the guest had written to its disks.
    pub disk_used: u64,
}

/// A snapshot without a name; gone when dropped.
#[derive(Debug)]
pub struct Staged {
    store: PathBuf,
    tag: Tag,
    existing: Existing,
    path: PathBuf,
    /// Holds the lock that keeps it from being swept.
    _lock: File,
}

impl Staged {
    pub(crate) fn create(store: &Path, tag: &Tag, existing: Existing) -> Result<Self, StoreError> {
        let (path, lock) = sweep::make(store)?;
        Ok(Self { store: store.into(), tag: tag.clone(), existing, path, _lock: lock })
    }

    /// The empty file for the state, open for reading and writing.
    ///
    /// # Errors
    /// When it cannot be made, or was made before.
    pub fn state(&self) -> Result<File, StoreError> {
        self.file(STATE)
    }

    /// The empty file for the memory.
    ///
    /// # Errors
    /// As [`Staged::state`].
    pub fn memory(&self) -> Result<File, StoreError> {
        self.file(MEMORY)
    }

    /// The empty file for what was written to a disk.
    ///
    /// # Errors
    /// As [`Staged::state`].
    pub fn layer(&self, disk: usize) -> Result<File, StoreError> {
        self.file(&layer_name(disk))
    }

    fn file(&self, name: &str) -> Result<File, StoreError> {
        let path = self.path.join(name);
        File::options().read(true).write(true).create_new(true).open(&path).map_err(StoreError::io("create", &path))
    }

    /// Puts all of it on the disk and then under its tag, in one step.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when somebody else was quicker; [`StoreError::Io`] when the disk is full, among others.
    /// Then nothing of it is left.
    pub fn commit(self, described: Described) -> Result<Snapshot, StoreError> {
        let manifest = self.describe(described)?;
        let path = self.path.join(MANIFEST);
        let mut file = self.file(MANIFEST)?;
        file.write_all(&manifest.to_bytes()).map_err(StoreError::io("write", &path))?;
        for entry in fs::read_dir(&self.path).map_err(StoreError::io("list", &self.path))? {
            let path = entry.map_err(StoreError::io("list", &self.path))?.path();
            sync(&path)?;
        }
        sync(&self.path)?;
        let target = self.store.join(self.tag.as_str());
        self.publish(&target).map_err(|error| match error {
            Errno::EXIST => StoreError::Exists { tag: self.tag.clone() },
            error => StoreError::io("put in place", &target)(error.into()),
        })?;
        sync(&self.store)?;
        Snapshot::open(&target, &self.tag)
    }

    /// After an exchange the old snapshot has our name and goes when we do.
    fn publish(&self, target: &Path) -> Result<(), Errno> {
        match (self.existing, renameat_with(CWD, &self.path, CWD, target, RenameFlags::NOREPLACE)) {
            (Existing::Replace, Err(Errno::EXIST)) => {
                renameat_with(CWD, &self.path, CWD, target, RenameFlags::EXCHANGE)
            }
            (_, done) => done,
        }
    }

    fn describe(&self, described: Described) -> Result<Manifest, StoreError> {
        let length = |name: &str| {
            let path = self.path.join(name);
            path.metadata().map_err(StoreError::io("look at", &path))
        };
        let (state, memory) = (length(STATE)?, length(MEMORY)?);
        let layers =
            (0..described.images.len()).map(|disk| length(&layer_name(disk))).collect::<Result<Vec<_>, _>>()?;
        let occupied = [&state, &memory].into_iter().chain(&layers).map(|meta| meta.blocks() * 512).sum();
        let sizes = Sizes {
            state: state.len(),
            memory: memory.len(),
            layers: layers.iter().map(fs::Metadata::len).collect(),
            memory_used: described.memory_used,
            disk_used: described.disk_used,
            occupied,
        };
        Ok(Manifest {
            format: FORMAT,
            tag: self.tag.clone(),
            id: sweep::random_hex::<16>().map_err(StoreError::io("name a snapshot in", &self.store))?,
            created_unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            parent: described.parent,
            recipe: described.recipe,
            kernel: described.kernel,
            agent: described.agent,
            vcpus: described.vcpus,
            memory: described.memory,
            images: described.images.iter().map(|path| base_image(path)).collect::<Result<_, _>>()?,
            network: described.network,
            interpreter: described.interpreter,
            sizes,
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

fn base_image(path: &Path) -> Result<BaseImage, StoreError> {
    let failed = |source: io::Error| StoreError::Io { action: "find", path: path.into(), source };
    let path = path.canonicalize().map_err(failed)?;
    let bytes = path.metadata().map_err(failed)?.len();
    Ok(BaseImage { path, bytes })
}

fn sync(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(StoreError::io("sync", path))
}
