//! The part of a disk that never changes: an image, and the layers sealed above it.
//!
//! A table says for each block which file has it, so that a read costs the same whatever the depth; it is made once,
//! when the files are opened, and shared with every disk that has its own top above them.
//!
//! ```text
//! owner     0 2 0 1 2 2 0        one byte per block; no table at all for an image alone
//! layer 2     X     X X
//! layer 1     X   X              what a higher layer has, too, is never read
//! image     X X X X X X X
//! ```

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;

use super::backend::image_len;
use super::blocks;
use super::layer::{self, LayerFault};

/// How many layers there may be above the image.
pub const MAX_LAYERS: usize = 64;
/// The largest disk; bounds the table of owners to 1 GiB, of which only what layers have is ever touched.
const MAX_DISK_BYTES: u64 = 4 << 40;
/// The image's number among the owners.
const IMAGE: u8 = 0;

/// Why files are not the layers of a disk. Layers are counted from 1; 0 is the image.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// Too many files, or none.
    #[error("a disk has an image and at most {MAX_LAYERS} layers above it; {files} files were given")]
    Count {
        /// How many.
        files: usize,
    },
    /// The image's size cannot be found.
    #[error("the disk's image cannot be used: {source}")]
    Image {
        /// What the system says.
        source: io::Error,
    },
    /// The image is larger than any disk may be.
    #[error("the disk's image has {bytes} bytes; at most {MAX_DISK_BYTES} are possible")]
    TooLarge {
        /// How large it is.
        bytes: u64,
    },
    /// A file is not a layer of this disk.
    #[error("layer {index} of the disk cannot be used: {source}")]
    Layer {
        /// Which.
        index: usize,
        /// What is wrong with it.
        source: LayerFault,
    },
}

/// An image and the layers sealed above it.
#[derive(Debug)]
pub struct Layers {
    /// The image first.
    files: Vec<File>,
    len: u64,
    /// The number of the file that has a block; empty when it is the image for all of them.
    owners: Vec<u8>,
}

impl Layers {
    /// Opens an image and the layers above it, lowest first. The files are only read, and must not change as long as
    /// a disk is made of them.
    ///
    /// # Errors
    /// When there are too many or none, or one of them is not what it should be.
    pub fn open(files: Vec<File>) -> Result<Self, LayerError> {
        let count = files.len();
        let Some((image, above)) = files.split_first().filter(|(_, above)| above.len() <= MAX_LAYERS) else {
            return Err(LayerError::Count { files: count });
        };
        let len = image_len(image).map_err(|source| LayerError::Image { source })?;
        if len > MAX_DISK_BYTES {
            return Err(LayerError::TooLarge { bytes: len });
        }
        let mut owners = Vec::new();
        if !above.is_empty() {
            owners = vec![IMAGE; slot(blocks::count(len))];
        }
        for (number, file) in (IMAGE + 1..).zip(above) {
            let claim = |block| owners[slot(block)] = number;
            layer::read(file, len, claim).map_err(|source| LayerError::Layer { index: number.into(), source })?;
        }
        Ok(Self { files, len, owners })
    }

    /// How large the disk is.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len
    }

    /// How many layers lie above the image.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.files.len() - 1
    }

    /// Which file has a block.
    pub(super) fn owner(&self, block: u64) -> u8 {
        self.owners.get(slot(block)).copied().unwrap_or(IMAGE)
    }

    /// A file by its number.
    pub(super) fn file(&self, owner: u8) -> &File {
        &self.files[usize::from(owner)]
    }
}

/// A block's place in the table.
fn slot(block: u64) -> usize {
    usize::try_from(block).unwrap_or(usize::MAX)
}
