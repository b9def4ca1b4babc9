//! What a snapshot says about itself, as JSON. It is read from a file that anybody may have written: bounded, and the
//! format is looked at before the rest is understood.

use std::num::NonZeroU16;
use std::path::PathBuf;

use layer::Digest;
use serde::{Deserialize, Serialize};
use types::{GuestMemorySize, Interpreter, RecipeName, Tag, VcpuCount};

use crate::StoreError;

/// The only format this build writes and reads.
pub const FORMAT: u32 = 2;
/// How many layers memory or a disk may have above each other: a template gets them all beside one message.
pub const MAX_CHAIN: usize = 56;
/// How many files a template may need in all, for the same reason.
const MAX_FILES: usize = 120;
/// More than any manifest of ours holds.
pub(crate) const MAX_BYTES: u64 = 256 << 10;

/// What a snapshot is and what it needs: all of its layers, so that it stays whole when its parent is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The layout of the store and of this file.
    pub format: u32,
    /// What it was called when it was made.
    pub tag: Tag,
    /// Random: no two snapshots share it, also not two that had the same tag one after the other.
    pub id: String,
    /// Seconds since 1970.
    pub created_unix: u64,
    /// The snapshot it descends from.
    pub parent: Option<Parent>,
    /// What it was made of otherwise: the id of a sandbox, or `compact:<tag>`.
    pub branched_from: Option<String>,
    /// For how long the guest did not run when it was taken.
    pub pause_us: Option<u64>,
    /// What its disk image was built from.
    pub recipe: Option<RecipeName>,
    /// `uname -r` of the guest.
    pub kernel: String,
    /// The version of the agent that waits in it.
    pub agent: String,
    /// Virtual CPUs.
    pub vcpus: VcpuCount,
    /// Memory.
    pub memory: GuestMemorySize,
    /// Whether the guest has a network card.
    pub network: bool,
    /// Where what is made of it may connect to, if nobody says otherwise: an egress policy, as it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Box<str>>,
    /// The interpreter that was warmed.
    pub interpreter: Option<Interpreter>,
    /// TCP ports that something listens on in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<NonZeroU16>,
    /// vCPUs and devices.
    pub state: StateRef,
    /// The layers of the memory, lowest first; the first one lies over zeroes.
    pub memory_layers: Vec<LayerRef>,
    /// Each writable disk, in order.
    pub disks: Vec<DiskRef>,
}

/// A snapshot by what it was called and by which one it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Its tag then.
    pub tag: Tag,
    /// Its id.
    pub id: String,
}

/// The state, which each snapshot has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateRef {
    /// Of all of it.
    pub digest: Digest,
    /// Its length.
    pub bytes: u64,
}

/// A layer, which many snapshots may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRef {
    /// Its name.
    pub digest: Digest,
    /// Length of its file, holes included.
    pub file_bytes: u64,
    /// Bytes of memory or disk in it.
    pub data_bytes: u64,
}

/// A writable disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRef {
    /// What is under the lowest layer; without one, zeroes are.
    pub image: Option<BaseImage>,
    /// Its size.
    pub length: u64,
    /// What was written to it, lowest first.
    pub layers: Vec<LayerRef>,
}

/// A disk image that the snapshot needs and does not contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseImage {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// When it was last written, in nanoseconds since 1970.
    pub mtime_ns: i64,
}

/// How much of something is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// In all layers.
    pub chain: u64,
    /// In those that came with the snapshot.
    pub own: u64,
}

impl Stored {
    /// Both together. What a manifest says may be anything, so there is an end to it.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { chain: self.chain.saturating_add(other.chain), own: self.own.saturating_add(other.own) }
    }
}

/// The part that every format has.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

impl Manifest {
    /// Reads one, of whatever format.
    pub(crate) fn parse(tag: &Tag, bytes: &[u8]) -> Result<Self, StoreError> {
        let damaged = |reason: String| StoreError::Manifest { tag: tag.clone(), reason };
        let header: Header = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        match header.format {
            FORMAT => {}
            found if found < FORMAT => return Err(StoreError::Older { tag: tag.clone(), found }),
            found => return Err(StoreError::Newer { tag: tag.clone(), found }),
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        manifest.check().map_err(|reason| damaged(reason.into()))?;
        Ok(manifest)
    }

    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.chains().any(<[_]>::is_empty) {
            return Err("memory or a disk has no layer");
        }
        if self.chains().any(|chain| chain.len() > MAX_CHAIN) || self.file_count() > MAX_FILES {
            return Err("it has more layers than a template can be given");
        }
        Ok(())
    }

    /// Whether each chain can get one more layer.
    pub(crate) fn expect_room(&self) -> Result<(), StoreError> {
        let files = self.file_count() + self.chains().count();
        if self.chains().any(|chain| chain.len() >= MAX_CHAIN) || files > MAX_FILES {
            return Err(StoreError::TooDeep { tag: self.tag.clone() });
        }
        Ok(())
    }

    /// Whether another snapshot's layers can lie over these.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.expect_room().is_ok()
    }

    /// The same with nothing in it that is stored: what it is, and the images under its disks. That is enough to store all
    /// of a sandbox of it when it is gone itself. `None` where layers stand for images, for they go with it.
    #[must_use]
    pub fn without_layers(&self) -> Option<Self> {
        let bare = |disk: &DiskRef| Some(DiskRef { image: Some(disk.image.clone()?), layers: Vec::new(), ..*disk });
        let disks = self.disks.iter().map(bare).collect::<Option<_>>()?;
        Some(Self { memory_layers: Vec::new(), disks, ..self.clone() })
    }

    /// How it is named by those that descend from it.
    #[must_use]
    pub fn as_parent(&self) -> Parent {
        Parent { tag: self.tag.clone(), id: self.id.clone() }
    }

    /// How many layers of memory lie above the lowest.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.memory_layers.len().saturating_sub(1)
    }

    /// All layers, of memory and disks; one may come more than once.
    pub fn layers(&self) -> impl Iterator<Item = &LayerRef> {
        self.chains().flatten()
    }

    /// How much memory is stored.
    #[must_use]
    pub fn memory_stored(&self) -> Stored {
        self.stored(&self.memory_layers)
    }

    /// How much of the disks is stored, the images aside.
    #[must_use]
    pub fn disk_stored(&self) -> Stored {
        let disks = self.disks.iter().map(|disk| self.stored(&disk.layers));
        disks.fold(Stored::default(), Stored::plus)
    }

    /// All that it needs in the store.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.memory_stored().plus(self.disk_stored()).chain.saturating_add(self.state.bytes)
    }

    fn stored(&self, chain: &[LayerRef]) -> Stored {
        let sum = |layers: &[LayerRef]| layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.data_bytes));
        let inherited = if self.parent.is_some() { chain.len().saturating_sub(1) } else { 0 };
        Stored { chain: sum(chain), own: sum(&chain[inherited..]) }
    }

    fn chains(&self) -> impl Iterator<Item = &[LayerRef]> {
        let disks = self.disks.iter().map(|disk| &disk.layers[..]);
        std::iter::once(&self.memory_layers[..]).chain(disks)
    }

    /// The state, all layers, and the images.
    fn file_count(&self) -> usize {
        1 + self.layers().count() + self.disks.iter().filter(|disk| disk.image.is_some()).count()
    }
}
