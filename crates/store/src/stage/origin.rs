//! What a new snapshot comes from, and what its layers lie on.

use std::io;
use std::path::{Path, PathBuf};

use crate::StoreError;
use crate::manifest::{BaseImage, DiskRef, LayerRef, Manifest, Parent};
use crate::open::mtime_ns;

/// What a new snapshot comes from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The snapshot it descends from; forgotten when its layers lie on none of that.
    pub parent: Option<Parent>,
    /// What it is made of otherwise: a sandbox's id, or `compact:<tag>`.
    pub branched_from: Option<String>,
    /// Where a sandbox that has a network may connect to, and so what is made of its branch may; as it is written.
    pub egress: Option<Box<str>>,
    /// What its layers lie on.
    pub under: Under,
}

/// What the layers of a new snapshot lie on.
#[derive(Clone, Debug)]
pub enum Under {
    /// Each disk's on an image, as that is now; the memory's on nothing.
    Images(Vec<PathBuf>),
    /// The same, on the images that this snapshot's disks have, or on the layers that stand for them.
    ImagesOf(Box<Manifest>),
    /// All on this snapshot's.
    LayersOf(Box<Manifest>),
    /// That is said before it is committed: the snapshot they lie on may still be written.
    Later,
}

impl Under {
    /// Whether what lies on it descends from another snapshot, as far as is known.
    pub(super) const fn descends(&self) -> bool {
        matches!(self, Self::LayersOf(_) | Self::Later)
    }
}

impl Origin {
    /// A VM that was booted from these images.
    #[must_use]
    pub const fn booted(images: Vec<PathBuf>) -> Self {
        Self { parent: None, branched_from: None, egress: None, under: Under::Images(images) }
    }

    /// A sandbox that was forked from this snapshot, of which what changed is written.
    #[must_use]
    pub fn branched(parent: Manifest, sandbox: String) -> Self {
        let (name, under) = (parent.as_parent(), Under::LayersOf(Box::new(parent)));
        Self { parent: Some(name), branched_from: Some(sandbox), egress: None, under }
    }
}

/// The files that layers will lie on.
#[derive(Clone, Debug, Default)]
pub(super) struct Foundation {
    pub(super) memory: Vec<LayerRef>,
    pub(super) disks: Vec<DiskFoundation>,
}

#[derive(Clone, Debug)]
pub(super) struct DiskFoundation {
    pub(super) image: Option<BaseImage>,
    /// The size of the disk, if something says it.
    pub(super) length: Option<u64>,
    pub(super) layers: Vec<LayerRef>,
}

impl Foundation {
    pub(super) fn lay(under: Under) -> Result<Self, StoreError> {
        let (memory, disks) = match under {
            Under::Images(paths) => {
                let disks = paths.iter().map(|path| DiskFoundation::over_image(path));
                (Vec::new(), disks.collect::<Result<_, _>>()?)
            }
            Under::ImagesOf(manifest) => {
                (Vec::new(), manifest.disks.into_iter().map(lowest).map(DiskFoundation::over).collect())
            }
            Under::LayersOf(manifest) => {
                manifest.expect_room()?;
                (manifest.memory_layers, manifest.disks.into_iter().map(DiskFoundation::over).collect())
            }
            Under::Later => (Vec::new(), Vec::new()),
        };
        Ok(Self { memory, disks })
    }

    pub(super) fn layers(&self) -> impl Iterator<Item = &LayerRef> {
        self.memory.iter().chain(self.disks.iter().flat_map(|disk| &disk.layers))
    }
}

impl DiskFoundation {
    fn over_image(path: &Path) -> Result<Self, StoreError> {
        let image = base_image(path)?;
        Ok(Self { length: Some(image.bytes), image: Some(image), layers: Vec::new() })
    }

    fn over(disk: DiskRef) -> Self {
        Self { image: disk.image, length: Some(disk.length), layers: disk.layers }
    }
}

/// A disk without what was written to it.
fn lowest(mut disk: DiskRef) -> DiskRef {
    disk.layers.truncate(usize::from(disk.image.is_none()));
    disk
}

fn base_image(path: &Path) -> Result<BaseImage, StoreError> {
    let failed = |source: io::Error| StoreError::Io { action: "find", path: path.into(), source };
    let path = path.canonicalize().map_err(failed)?;
    let meta = path.metadata().map_err(failed)?;
    Ok(BaseImage { path, bytes: meta.len(), mtime_ns: mtime_ns(&meta) })
}
