//! An immutable image with a private writable top.
//!
//! The top is a sparse file without a name, as large as the image; a map has one bit for each block of 4 KiB: whether
//! the block is in the top. A block is always wholly in one of the two, so a read asks one bit per block and merges
//! neighbours. A block enters the top with its first write: what the write leaves out is copied from the image.
//!
//! ```text
//! map    . . X X . X .        X: in the top
//! top        [   ] [ ]        same offsets as in the image
//! image  [           ]
//! ```

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use super::backend::{Backend, image_len, read_all, write_all};
use crate::Buffers;

/// The unit in which the top is filled: the page size, and the block size of the file systems above and below.
const BLOCK: usize = 4096;
const BLOCK_BYTES: u64 = BLOCK as u64;

/// A copy-on-write disk. The image is never written; the top is gone when the disk is.
#[derive(Debug)]
pub struct CowDisk {
    image: File,
    top: File,
    len: u64,
    in_top: BlockMap,
}

impl CowDisk {
    /// Puts an empty top, a nameless file in `dir`, over an image.
    ///
    /// # Errors
    /// When the image's size cannot be found or the top cannot be made.
    pub fn create(image: File, dir: &Path) -> io::Result<Self> {
        let len = image_len(&image)?;
        let top = tempfile::tempfile_in(dir)?;
        top.set_len(len)?;
        Ok(Self { image, top, len, in_top: BlockMap::new(len.div_ceil(BLOCK_BYTES))? })
    }

    /// Brings the rest of a partly overwritten block into the top. Its bit stays clear until the write is done.
    fn copy_up(&self, block: u64) -> io::Result<()> {
        let mut bytes = [0; BLOCK];
        let start = block * BLOCK_BYTES;
        // The last block of an image may be a short one.
        let count = usize::try_from((self.len - start).min(BLOCK_BYTES)).expect("at most a block");
        read_all(&self.image, Buffers::from(&mut bytes[..count]), start)?;
        write_all(&self.top, Buffers::from(&mut bytes[..count]), start)
    }
}

impl Backend for CowDisk {
    fn len_bytes(&self) -> u64 {
        self.len
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, mut to: Buffers<'_>, offset: u64) -> io::Result<()> {
        let span = Span::new(offset, to.len())?;
        for (run, in_top) in self.in_top.runs(span.blocks()) {
            let part = span.within(&run);
            let file = if in_top { &self.top } else { &self.image };
            read_all(file, to.take(part.len), part.offset)?;
        }
        Ok(())
    }

    /// Blocks count as being in the top only once all of them are: a write that fails half way leaves the image's
    /// contents visible in blocks that were not there before.
    fn write_at(&mut self, from: Buffers<'_>, offset: u64) -> io::Result<()> {
        let span = Span::new(offset, from.len())?;
        let blocks = span.blocks();
        if span.end() > self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if span.len == 0 {
            return Ok(());
        }
        let (first, last) = (blocks.start, blocks.end - 1);
        let edges = [Some(first), (last != first).then_some(last)];
        for block in edges.into_iter().flatten() {
            if !span.covers(block, self.len) && !self.in_top.has(block) {
                self.copy_up(block)?;
            }
        }
        write_all(&self.top, from, offset)?;
        self.in_top.insert(blocks);
        Ok(())
    }

    /// The top ends with the VM and with the host, so there is nothing that could outlast either.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A part of the disk.
#[derive(Clone, Copy, Debug)]
struct Span {
    offset: u64,
    len: usize,
}

impl Span {
    fn new(offset: u64, len: usize) -> io::Result<Self> {
        match u64::try_from(len).ok().and_then(|len| offset.checked_add(len)) {
            Some(_) => Ok(Self { offset, len }),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn end(self) -> u64 {
        self.offset + u64::try_from(self.len).expect("usize fits in u64")
    }

    /// The blocks it touches.
    fn blocks(self) -> Range<u64> {
        self.offset / BLOCK_BYTES..self.end().div_ceil(BLOCK_BYTES)
    }

    /// The part of it that lies in these blocks.
    fn within(self, blocks: &Range<u64>) -> Self {
        let start = self.offset.max(blocks.start.saturating_mul(BLOCK_BYTES));
        let end = self.end().min(blocks.end.saturating_mul(BLOCK_BYTES));
        Self { offset: start, len: usize::try_from(end.saturating_sub(start)).expect("no longer than self.len") }
    }

    /// Whether it covers all of a block of a disk of this length.
    fn covers(self, block: u64, disk_len: u64) -> bool {
        let start = block * BLOCK_BYTES;
        self.offset <= start && self.end() >= (start + BLOCK_BYTES).min(disk_len)
    }
}

/// A set of blocks.
#[derive(Debug)]
struct BlockMap {
    words: Vec<u64>,
}

impl BlockMap {
    fn new(blocks: u64) -> io::Result<Self> {
        let words = usize::try_from(blocks.div_ceil(64)).map_err(|_| io::ErrorKind::FileTooLarge)?;
        Ok(Self { words: vec![0; words] })
    }

    fn slot(block: u64) -> (usize, u64) {
        (usize::try_from(block / 64).unwrap_or(usize::MAX), 1 << (block % 64))
    }

    fn has(&self, block: u64) -> bool {
        let (word, bit) = Self::slot(block);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    fn insert(&mut self, blocks: Range<u64>) {
        for block in blocks {
            let (word, bit) = Self::slot(block);
            if let Some(word) = self.words.get_mut(word) {
                *word |= bit;
            }
        }
    }

    /// Cuts a range where membership changes.
    fn runs(&self, blocks: Range<u64>) -> impl Iterator<Item = (Range<u64>, bool)> {
        let mut next = blocks.start;
        std::iter::from_fn(move || {
            let start = next;
            (start < blocks.end).then(|| {
                let inside = self.has(start);
                next = (start..blocks.end).find(|block| self.has(*block) != inside).unwrap_or(blocks.end);
                (start..next, inside)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use proptest::prelude::*;

    use super::*;

    fn image(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn disk(bytes: &[u8]) -> CowDisk {
        CowDisk::create(image(bytes), &std::env::temp_dir()).unwrap()
    }

    fn contents(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(image_len(file).unwrap()).unwrap()];
        read_all(file, Buffers::from(bytes.as_mut_slice()), 0).unwrap();
        bytes
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect()
    }

    #[test]
    fn a_whole_block_is_written_without_reading_the_image() {
        let mut disk = disk(&pattern(3 * BLOCK));
        // An image that lost its contents shows whether it is read.
        disk.image.set_len(0).unwrap();
        disk.write_at(Buffers::from(&mut [9; BLOCK][..]), BLOCK_BYTES).unwrap();
        disk.write_at(Buffers::from(&mut [9; 10][..]), 1).unwrap_err();
        let mut bytes = [0; BLOCK];
        disk.read_at(Buffers::from(&mut bytes[..]), BLOCK_BYTES).unwrap();
        assert_eq!(bytes, [9; BLOCK]);
    }

    #[test]
    fn only_written_blocks_take_space() {
        let mut disk = disk(&pattern(256 * BLOCK));
        disk.write_at(Buffers::from(&mut [1; 3][..]), 100 * BLOCK_BYTES + 5).unwrap();
        assert!(disk.top.metadata().unwrap().blocks() * 512 <= 2 * BLOCK_BYTES);
        assert_eq!(disk.top.metadata().unwrap().nlink(), 0);
    }

    #[test]
    fn a_write_beyond_the_end_changes_nothing() {
        let mut disk = disk(&pattern(BLOCK));
        disk.write_at(Buffers::from(&mut [1; 2][..]), BLOCK_BYTES - 1).unwrap_err();
        disk.write_at(Buffers::from(&mut [1; 2][..]), u64::MAX).unwrap_err();
        disk.read_at(Buffers::from(&mut [0; 2][..]), BLOCK_BYTES - 1).unwrap_err();
        let mut bytes = [0];
        disk.read_at(Buffers::from(&mut bytes[..]), BLOCK_BYTES - 1).unwrap();
        assert_eq!(bytes[0], pattern(BLOCK)[BLOCK - 1]);
    }

    proptest! {
        #[test]
        fn it_behaves_like_memory_and_spares_the_image(
            len in 1_usize..6 * BLOCK,
            transfers in prop::collection::vec((any::<bool>(), any::<u16>(), any::<u16>(), any::<u8>()), 0..40),
        ) {
            let mut model = pattern(len);
            let mut disk = disk(&model);
            for (write, offset, count, byte) in transfers {
                let offset = usize::from(offset) % (len + 1);
                let count = usize::from(count) % (len - offset + 1);
                let mut bytes = vec![byte; count];
                let buffers = Buffers::from(bytes.as_mut_slice());
                if write {
                    disk.write_at(buffers, offset as u64).unwrap();
                    model[offset..offset + count].fill(byte);
                } else {
                    disk.read_at(buffers, offset as u64).unwrap();
                    prop_assert_eq!(&bytes, &model[offset..offset + count]);
                }
            }
            let mut all = vec![0; len];
            disk.read_at(Buffers::from(all.as_mut_slice()), 0).unwrap();
            prop_assert_eq!(all, model);
            prop_assert_eq!(contents(&disk.image), pattern(len));
        }
    }
}
