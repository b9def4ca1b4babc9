//! A sealed layer: the blocks a disk's top had gathered, in a file of their own that is never written again.
//!
//! ```text
//! 0                        map                  footer     end
//! +------------------------+--------------------+----------+
//! | blocks, each where it  | a bit per block of | 64 bytes |
//! | is on the disk; holes  | the disk, as words |          |
//! +------------------------+--------------------+----------+
//!
//! footer:  magic [u8; 8] | version u32 | block size u32 | disk length u64 | blocks in the map u64 | checksum [u8; 32]
//! ```
//!
//! All numbers are little-endian. The disk's length alone says where everything is, so a file of any other length is
//! none of its layers. The map alone says which blocks the layer has: a block that became zero is one of them, whether
//! or not the file has a hole there. The checksum is the SHA-256 of the map and of the footer before it: a reader may
//! rely on *which* blocks there are. What is *in* the blocks it does not cover, for that would cost a reading of all
//! of them; nor which image and layers lie below. Both are the store's to know.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use sha2::{Digest, Sha256};

use super::backend::image_len;
use super::blocks::{self, BLOCK_BYTES, BlockMap, CHUNK_WORDS};

const MAGIC: [u8; 8] = *b"FKDLAYER";
const VERSION: u32 = 1;
const BLOCK_SIZE: u32 = 4096;
const FOOTER_LEN: usize = 64;
const FOOTER_BYTES: u64 = FOOTER_LEN as u64;
/// How much of a map is read or written at once: a block of the file, so that an empty one can stay a hole.
const MAP_CHUNK: usize = CHUNK_WORDS * size_of::<u64>();
/// How much is copied at once where the kernel does not copy by itself.
const COPY_CHUNK: usize = 256 << 10;

/// Why a file is not a layer of a disk.
#[derive(Debug, thiserror::Error)]
pub enum LayerFault {
    /// It cannot be read, or became shorter meanwhile.
    #[error("it cannot be read: {source}")]
    Io {
        /// What the system says.
        #[from]
        source: io::Error,
    },
    /// There is no footer where a layer has one.
    #[error("it is not a disk layer, or its end is missing")]
    Foreign,
    /// Another format.
    #[error("it is of format {found}; this build reads format {VERSION}")]
    Version {
        /// The file's.
        found: u32,
    },
    /// Other blocks than ours.
    #[error("its blocks have {found} bytes; this build reads blocks of {BLOCK_SIZE}")]
    BlockSize {
        /// The file's.
        found: u32,
    },
    /// It was taken from another disk.
    #[error("it belongs to a disk of {found} bytes, and this one has {expected}")]
    Disk {
        /// The length in the file.
        found: u64,
        /// The length of the disk at hand.
        expected: u64,
    },
    /// Something is missing, or was added.
    #[error("it has {found} bytes instead of {expected}")]
    Length {
        /// The file's length.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// The map is not the one that was written.
    #[error("its map is damaged: {what}")]
    Map {
        /// What shows it.
        what: &'static str,
    },
}

/// What a layer came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerStats {
    /// How many blocks it has.
    pub blocks: u64,
    /// How many bytes of the disk these are.
    pub data_bytes: u64,
    /// How much was written in all: blocks, map and footer, without holes.
    pub file_bytes: u64,
}

/// Where things are in the layers of a disk.
#[derive(Clone, Copy, Debug)]
struct Layout {
    disk_len: u64,
    map: u64,
    footer: u64,
    end: u64,
}

impl Layout {
    fn new(disk_len: u64) -> io::Result<Self> {
        let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
        let map = blocks::count(disk_len).checked_mul(BLOCK_BYTES).ok_or_else(too_large)?;
        let map_len = u64::try_from(BlockMap::word_count(disk_len)? * size_of::<u64>()).expect("usize fits in u64");
        let footer = map.checked_add(map_len).ok_or_else(too_large)?;
        let end = footer.checked_add(FOOTER_BYTES).ok_or_else(too_large)?;
        Ok(Self { disk_len, map, footer, end })
    }
}

/// The footer up to its checksum.
fn summed(disk_len: u64, count: u64) -> Vec<u8> {
    let sizes = [VERSION, BLOCK_SIZE].map(u32::to_le_bytes).concat();
    [&MAGIC[..], &sizes, &disk_len.to_le_bytes(), &count.to_le_bytes()].concat()
}

/// Reads the footer of a disk's layer; says how many blocks it claims, and its checksum.
fn read_footer(file: &File, layout: &Layout) -> Result<(u64, [u8; 32]), LayerFault> {
    let found = image_len(file)?;
    let mut footer = [0; FOOTER_LEN];
    let at = found.checked_sub(FOOTER_BYTES).ok_or(LayerFault::Foreign)?;
    file.read_exact_at(&mut footer, at)?;
    let mut rest = &footer[..];
    if cut::<8>(&mut rest) != MAGIC {
        return Err(LayerFault::Foreign);
    }
    match u32::from_le_bytes(cut(&mut rest)) {
        VERSION => {}
        found => return Err(LayerFault::Version { found }),
    }
    match u32::from_le_bytes(cut(&mut rest)) {
        BLOCK_SIZE => {}
        found => return Err(LayerFault::BlockSize { found }),
    }
    match u64::from_le_bytes(cut(&mut rest)) {
        len if len == layout.disk_len => {}
        found => return Err(LayerFault::Disk { found, expected: layout.disk_len }),
    }
    if found != layout.end {
        return Err(LayerFault::Length { found, expected: layout.end });
    }
    Ok((u64::from_le_bytes(cut(&mut rest)), cut(&mut rest)))
}

fn cut<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, after) = rest.split_first_chunk().expect("the footer's fields add up to its length");
    *rest = after;
    *first
}

/// Checks a layer of a disk and shows each of its blocks to `visit`, all of which lie on the disk. Only when the end
/// is reached without an error were they the ones that had been written.
pub(super) fn read(file: &File, disk_len: u64, mut visit: impl FnMut(u64)) -> Result<(), LayerFault> {
    let layout = Layout::new(disk_len)?;
    let (claimed, checksum) = read_footer(file, &layout)?;
    let (mut sum, mut count, mut block, mut at) = (Sha256::new(), 0, 0, layout.map);
    let mut chunk = [0; MAP_CHUNK];
    while at < layout.footer {
        let len = usize::try_from(layout.footer - at).map_or(MAP_CHUNK, |left| left.min(MAP_CHUNK));
        file.read_exact_at(&mut chunk[..len], at)?;
        sum.update(&chunk[..len]);
        for word in chunk[..len].as_chunks().0 {
            let mut word = u64::from_le_bytes(*word);
            count += u64::from(word.count_ones());
            while word != 0 {
                let found = block + u64::from(word.trailing_zeros());
                if found >= blocks::count(disk_len) {
                    return Err(LayerFault::Map { what: "it names a block beyond the end of the disk" });
                }
                visit(found);
                word &= word - 1;
            }
            block += 64;
        }
        at += u64::try_from(len).expect("at most a chunk");
    }
    sum.update(summed(disk_len, claimed));
    if sum.finalize()[..] != checksum {
        return Err(LayerFault::Map { what: "it does not match its checksum" });
    }
    if count == claimed { Ok(()) } else { Err(LayerFault::Map { what: "its blocks are not as many as it says" }) }
}

/// Writes the blocks of `map` from a file as large as the disk into an empty one, and makes a layer of it.
pub(super) fn write(top: &File, map: &BlockMap, disk_len: u64, to: &File) -> io::Result<LayerStats> {
    if image_len(to)? != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a layer can only be written into an empty file"));
    }
    let layout = Layout::new(disk_len)?;
    let (mut stats, mut copier) = (LayerStats::default(), Copier::new(top, to));
    for run in map.filled() {
        let bytes = run.start * BLOCK_BYTES..disk_len.min(run.end * BLOCK_BYTES);
        stats.blocks += run.end - run.start;
        stats.data_bytes += bytes.end - bytes.start;
        copier.copy(bytes)?;
    }
    let (mut sum, map_bytes) = write_map(map, to, layout.map)?;
    let summed = summed(disk_len, stats.blocks);
    sum.update(&summed);
    to.write_all_at(&[&summed[..], &sum.finalize()].concat(), layout.footer)?;
    stats.file_bytes = stats.data_bytes + map_bytes + FOOTER_BYTES;
    // A file opened for appending takes no heed of places.
    if image_len(to)? != layout.end {
        return Err(io::Error::other("a layer's file did not keep what was written where it was written"));
    }
    Ok(stats)
}

/// Writes a map, without what is empty of it; says its checksum and how much was written.
fn write_map(map: &BlockMap, to: &File, mut at: u64) -> io::Result<(Sha256, u64)> {
    let (mut sum, mut written) = (Sha256::new(), 0);
    for (len, words) in map.chunks() {
        let mut bytes = [0; MAP_CHUNK];
        let bytes = &mut bytes[..len * size_of::<u64>()];
        let len = u64::try_from(bytes.len()).expect("at most a chunk");
        if let Some(words) = words {
            bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
            to.write_all_at(bytes, at)?;
            written += len;
        }
        sum.update(&*bytes);
        at += len;
    }
    Ok((sum, written))
}

/// Copies parts of a file to the same places of another.
#[derive(Debug)]
struct Copier<'f> {
    from: &'f File,
    to: &'f File,
    /// Empty as long as the kernel copies by itself, which may be no more than sharing the blocks.
    buffer: Vec<u8>,
}

impl<'f> Copier<'f> {
    const fn new(from: &'f File, to: &'f File) -> Self {
        Self { from, to, buffer: Vec::new() }
    }

    fn copy(&mut self, mut part: Range<u64>) -> io::Result<()> {
        if self.buffer.is_empty() {
            part.start = self.copy_in_kernel(&part);
        }
        while part.start < part.end {
            self.buffer.resize(COPY_CHUNK, 0);
            let len = usize::try_from(part.end - part.start).map_or(COPY_CHUNK, |left| left.min(COPY_CHUNK));
            self.from.read_exact_at(&mut self.buffer[..len], part.start)?;
            self.to.write_all_at(&self.buffer[..len], part.start)?;
            part.start += u64::try_from(len).expect("at most a chunk");
        }
        Ok(())
    }

    /// Says how far it came. Which files the kernel copies between is not to be known beforehand, and an error that
    /// concerns the files themselves comes up again when they are read and written.
    fn copy_in_kernel(&self, part: &Range<u64>) -> u64 {
        let mut at = part.start;
        while at < part.end {
            let len = usize::try_from(part.end - at).unwrap_or(usize::MAX);
            let (mut from_at, mut to_at) = (at, at);
            match rustix::fs::copy_file_range(self.from, Some(&mut from_at), self.to, Some(&mut to_at), len) {
                Ok(count @ 1..) => at += u64::try_from(count).expect("usize fits in u64"),
                Ok(0) | Err(_) => break,
            }
        }
        at
    }
}

/// What follows the blocks in a layer that claims to have `count` of them and whose map begins with these bytes; all
/// else about it is as it should be.
#[cfg(any(test, feature = "test-utils"))]
pub(crate) fn forge(disk_len: u64, map: &[u8], count: u64) -> Vec<u8> {
    let mut tail = map.to_vec();
    tail.resize(BlockMap::word_count(disk_len).expect("a small disk") * size_of::<u64>(), 0);
    let summed = summed(disk_len, count);
    let checksum = Sha256::digest([&tail[..], &summed].concat());
    [&tail[..], &summed, &checksum].concat()
}
