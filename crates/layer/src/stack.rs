//! What a chain of layers adds up to.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::blocks::{self, BLOCK_BYTES};
use crate::format::MAX_LENGTH;
use crate::layer::{Layer, LayerError};
use crate::owners::Owners;
use crate::sparse::file_len;

/// How many layers there may be above each other.
pub const MAX_LAYERS: usize = 60_000;

/// Why layers do not make a stack. They are counted from 1; 0 is what they lie on.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// Too many.
    #[error("at most {MAX_LAYERS} layers can lie above each other, and there are {layers}; merge some of them")]
    Count {
        /// How many.
        layers: usize,
    },
    /// The image's size cannot be found.
    #[error("the image cannot be used: {source}")]
    Image {
        /// What the system says.
        source: io::Error,
    },
    /// Larger than any disk or memory may be.
    #[error("the image has {bytes} bytes; at most {MAX_LENGTH} are possible")]
    TooLarge {
        /// How large it is.
        bytes: u64,
    },
    /// A layer of something else.
    #[error("layer {index} cannot be used: {source}")]
    Layer {
        /// Which.
        index: usize,
        /// What is wrong with it.
        source: LayerError,
    },
}

/// What the lowest layer lies on.
#[derive(Debug)]
pub enum Base {
    /// Nothing: so many bytes of zeroes.
    Zero {
        /// How many.
        length: u64,
    },
    /// The contents of a file or block device.
    Image(File),
}

/// Layers above each other.
#[derive(Debug)]
pub struct Stack {
    base: Base,
    layers: Vec<Layer>,
    length: u64,
    owners: Owners,
}

impl Stack {
    /// Puts layers, lowest first, on what they lie on.
    ///
    /// # Errors
    /// When there are too many, or they are not all of the same length.
    pub fn open(base: Base, layers: Vec<Layer>) -> Result<Self, StackError> {
        let length = match &base {
            Base::Zero { length } => *length,
            Base::Image(image) => file_len(image).map_err(|source| StackError::Image { source })?,
        };
        let owners = Owners::of_layers(length, &layers)?;
        Ok(Self { base, layers, length, owners })
    }

    /// How large the disk or memory is.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.length
    }

    /// The layers, lowest first.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Which layer has a block, counted from 1; 0 when none has.
    #[must_use]
    pub fn owner(&self, block: u64) -> u16 {
        self.owners.of(block)
    }

    /// Fills a buffer with what is at a place.
    ///
    /// # Errors
    /// When it reaches beyond the end, or a file cannot be read.
    pub fn read_at(&self, mut to: &mut [u8], offset: u64) -> io::Result<()> {
        let len = u64::try_from(to.len()).expect("usize fits in u64");
        let end = offset.checked_add(len).filter(|end| *end <= self.length).ok_or(io::ErrorKind::UnexpectedEof)?;
        for (run, owner) in self.owners.runs(offset / BLOCK_BYTES..blocks::count(end)) {
            let part = offset.max(run.start * BLOCK_BYTES)..end.min(run.end * BLOCK_BYTES);
            let (here, rest) = to.split_at_mut(blocks::len_of(&part));
            match self.file(owner) {
                Some(file) => file.read_exact_at(here, part.start)?,
                None => here.fill(0),
            }
            to = rest;
        }
        Ok(())
    }

    /// All blocks, cut where another file has them.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Range<u64>, u16)> {
        self.owners.runs(0..blocks::count(self.length))
    }

    /// Where the blocks of an owner are; nowhere when they are zero.
    pub(crate) fn file(&self, owner: u16) -> Option<&File> {
        match (usize::from(owner).checked_sub(1), &self.base) {
            (Some(index), _) => self.layers.get(index).map(Layer::file),
            (None, Base::Image(image)) => Some(image),
            (None, Base::Zero { .. }) => None,
        }
    }
}
