//! What a snapshot says about itself, as JSON. It is read from a file that anybody may have written: bounded, and the
//! format is looked at before the rest is understood.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use types::{GuestMemorySize, Interpreter, RecipeName, Tag, VcpuCount};

use crate::StoreError;

/// The format this build writes, and the newest it reads.
pub const FORMAT: u32 = 1;
/// More than any manifest of ours holds.
pub(crate) const MAX_BYTES: u64 = 64 << 10;

/// What a snapshot is and what it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The layout of this directory and of this file.
    pub format: u32,
    /// What it was called when it was made.
    pub tag: Tag,
    /// Random: no two snapshots share it, also not two that had the same tag one after the other.
    pub id: String,
    /// Seconds since 1970.
    pub created_unix: u64,
    /// The snapshot whose memory and disk lie under this one's.
    pub parent: Option<Tag>,
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
    /// The image of each writable disk, in order; `disk-<n>.layer` lies over it.
    pub images: Vec<BaseImage>,
    /// Whether the guest has a network card.
    pub network: bool,
    /// The interpreter that was warmed.
    pub interpreter: Option<Interpreter>,
    /// Lengths of the files.
    pub sizes: Sizes,
}

/// A disk image that the snapshot needs and does not contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseImage {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
}

/// How long the files are, and how much of that is more than holes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Length of `state`.
    pub state: u64,
    /// Length of `memory`.
    pub memory: u64,
    /// Length of each `disk-<n>.layer`.
    pub layers: Vec<u64>,
    /// Bytes of guest memory that are not zero.
    pub memory_used: u64,
    /// Bytes the guest had written to its disks.
    pub disk_used: u64,
    /// What all the files occupy on the disk.
    pub occupied: u64,
}

/// The part that every format has.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

impl Manifest {
    /// Reads what [`Manifest::to_bytes`] wrote.
    pub(crate) fn parse(tag: &Tag, bytes: &[u8]) -> Result<Self, StoreError> {
        let damaged = |reason: String| StoreError::Manifest { tag: tag.clone(), reason };
        let header: Header = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if header.format > FORMAT {
            return Err(StoreError::Newer { tag: tag.clone(), found: header.format, newest: FORMAT });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if manifest.images.len() != manifest.sizes.layers.len() {
            return Err(damaged("it has not one layer for each disk".into()));
        }
        Ok(manifest)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("a manifest holds only numbers, texts and lists of them")
    }
}
