//! A disk as files above each other: an image, the layers sealed above it, and the tops of the disks made of them.
//!
//! A table says for each block which file has it, so that a read costs the same whatever the depth. A block is always
//! wholly in one file, at the place it has on the disk.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use layer::{Layer, MAX_LAYERS, Owners, REGION_BLOCKS, StackError, Writer, Written};

use super::backend::image_len;
use super::blocks::{BLOCK_BYTES, count};

/// A disk that is not written: what disks with a top are made of, and what becomes of them.
#[derive(Debug)]
pub struct Layers {
    /// By their numbers; the image is 0.
    files: Vec<File>,
    len: u64,
    owners: Owners,
    floor: u16,
}

impl Layers {
    /// Puts layers, lowest first, above an image. Their files are only read, and must not change as long as a disk is
    /// made of them.
    ///
    /// # Errors
    /// When there are too many, or they are not layers of a disk as large as the image.
    pub fn open(image: File, layers: Vec<Layer>) -> Result<Self, StackError> {
        let len = image_len(&image).map_err(|source| StackError::Image { source })?;
        Self::stack(image, len, layers)
    }

    fn stack(image: File, len: u64, layers: Vec<Layer>) -> Result<Self, StackError> {
        let owners = Owners::of_layers(len, &layers)?;
        let files = [image].into_iter().chain(layers.into_iter().map(Layer::into_file));
        let mut opened = Self { files: files.collect(), len, owners, floor: 0 };
        opened.floor = opened.files();
        Ok(opened)
    }

    /// Puts layers, lowest first, above zeroes: the lowest is an image by itself, for what it has not is a hole.
    ///
    /// # Errors
    /// When there are too many or none, or they are not layers of one disk.
    pub fn over_zeroes(mut layers: Vec<Layer>) -> Result<Self, StackError> {
        if layers.is_empty() {
            return Err(StackError::Count { layers: 0 });
        }
        let lowest = layers.remove(0);
        let len = lowest.len_bytes();
        Self::stack(lowest.into_file(), len, layers)
    }

    /// Its files.
    pub fn iter(&self) -> impl Iterator<Item = &File> {
        self.files.iter()
    }

    /// How large the disk is.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len
    }

    /// How many files it is made of.
    #[must_use]
    pub fn files(&self) -> u16 {
        u16::try_from(self.files.len()).expect("at most MAX_LAYERS and an image")
    }

    /// How many of its files were there when it was opened, or when the disk it was taken from was made: what the
    /// others have is what is new.
    #[must_use]
    pub const fn floor(&self) -> u16 {
        self.floor
    }

    /// Writes into an empty file a layer with the blocks that a file from this number on has, to lie above those
    /// before it. Nothing is synced.
    ///
    /// # Errors
    /// When the file is not empty or the host cannot read or write; what is in it then is no layer.
    pub fn write_layer(&self, since: u16, to: &File) -> io::Result<Written> {
        let mut writer = Writer::create(to, self.len)?;
        let mut buffer = Vec::new();
        for (run, owner) in self.runs(0..count(self.len)).filter(|(_, owner)| *owner >= since) {
            for start in run.clone().step_by(step()) {
                let end = run.end.min(start + REGION_BLOCKS);
                let bytes = start * BLOCK_BYTES..self.len.min(end * BLOCK_BYTES);
                buffer.resize(usize::try_from(bytes.end - bytes.start).expect("at most a region"), 0);
                self.file(owner)?.read_exact_at(&mut buffer, bytes.start)?;
                writer.put(start, &buffer)?;
            }
        }
        writer.finish()
    }

    /// Puts a file above the others that has none of the blocks yet; from now on they are the old ones.
    pub(super) fn raise(&mut self, top: File) -> io::Result<()> {
        self.floor = self.files();
        self.push(top)
    }

    /// Puts a file above the others that has none of the blocks yet.
    pub(super) fn push(&mut self, top: File) -> io::Result<()> {
        let (found, expected) = (image_len(&top)?, self.len);
        if found != expected {
            let what = format!("a disk of {expected} bytes cannot have a top of {found}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.has_room()?;
        self.lay(top);
        Ok(())
    }

    /// Whether one more file can be put above the others.
    pub(super) fn has_room(&self) -> io::Result<()> {
        room_above(self.files.len())
    }

    /// Puts a file above the others that is as large as the disk and has none of the blocks yet, where there is room.
    pub(super) fn lay(&mut self, top: File) {
        self.files.push(top);
    }

    /// Takes the highest file away, which must have no block.
    pub(super) fn pop(&mut self) {
        self.files.pop();
    }

    /// Replaces the highest file by the same, opened otherwise; the one there was. There always is one.
    pub(super) fn replace_top(&mut self, other: File) -> File {
        let place = self.files.len() - 1;
        std::mem::replace(&mut self.files[place], other)
    }

    /// Says which file has these blocks from now on.
    pub(super) fn claim(&mut self, blocks: Range<u64>, owner: u16) {
        self.owners.claim(blocks, owner);
    }

    /// Which file has a block.
    pub(super) fn owner(&self, block: u64) -> u16 {
        self.owners.of(block)
    }

    /// Cuts a range of blocks where another file has them.
    pub(super) fn runs(&self, blocks: Range<u64>) -> impl Iterator<Item = (Range<u64>, u16)> {
        self.owners.runs(blocks)
    }

    /// A file by its number.
    pub(super) fn file(&self, owner: u16) -> io::Result<&File> {
        self.files.get(usize::from(owner)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Whether there can be a file above so many, of which the lowest is the image.
fn room_above(files: usize) -> io::Result<()> {
    match files {
        0..=MAX_LAYERS => Ok(()),
        layers => Err(io::Error::new(io::ErrorKind::QuotaExceeded, StackError::Count { layers })),
    }
}

/// How many blocks are read at once.
fn step() -> usize {
    usize::try_from(REGION_BLOCKS).expect("a small number")
}
