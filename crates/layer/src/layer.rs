//! A layer that was opened: its table is known and was checked.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::blocks::{self, BLOCK_BYTES, REGION_BLOCKS, bytes_of, len_of};
use crate::digest::Digest;
use crate::format::{BLOCK_SIZE, ENTRY_BYTES, ENTRY_LEN, Entry, FOOTER_BYTES, FOOTER_LEN, Footer, MAX_LENGTH, VERSION};
use crate::sparse::file_len;

/// How many entries are read at once.
const CHUNK_ENTRIES: usize = 512;

/// Why a file is not the layer it should be.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// It cannot be read, or became shorter meanwhile.
    #[error("it cannot be read: {source}")]
    Io {
        /// What the system says.
        #[from]
        source: io::Error,
    },
    /// There is no footer where a layer has one.
    #[error("it is not a layer, or its end is missing")]
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
    /// Larger than any disk or memory may be.
    #[error("it is of {bytes} bytes; at most {MAX_LENGTH} are possible")]
    TooLarge {
        /// How large it says to be.
        bytes: u64,
    },
    /// It was taken from another disk or memory.
    #[error("it belongs to {found} bytes of disk or memory, and here are {expected}")]
    Whole {
        /// The length in the file.
        found: u64,
        /// The length of what is at hand.
        expected: u64,
    },
    /// Something is missing, or was added.
    #[error("the file has {found} bytes instead of {expected}")]
    Length {
        /// The file's length.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// The table is not one that was written.
    #[error("its table is damaged: {what}")]
    Table {
        /// What shows it.
        what: &'static str,
    },
    /// The blocks are not those that were written.
    #[error("its contents are damaged in the mebibyte from byte {offset} on")]
    Contents {
        /// Where that region begins.
        offset: u64,
    },
    /// There is data where the table says there is none.
    #[error("it has bytes from {offset} on that its table does not know of")]
    Stray {
        /// Where, to the page.
        offset: u64,
    },
}

/// What a block of a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its bytes are in the file.
    Data,
    /// It became zero.
    Zero,
}

/// What a layer comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerStats {
    /// How many blocks it has.
    pub blocks: u64,
    /// How many of them became zero.
    pub zero_blocks: u64,
    /// How many bytes the others have.
    pub data_bytes: u64,
    /// How much that is in the file together with its table, without holes.
    pub file_bytes: u64,
}

impl LayerStats {
    /// Of a table without entries.
    pub(crate) fn empty() -> Self {
        Self { file_bytes: FOOTER_BYTES, ..Self::default() }
    }

    pub(crate) fn add(&mut self, entry: &Entry, length: u64) {
        let bytes = entry.data_runs().map(|run| bytes_of(&run, length)).map(|bytes| bytes.end - bytes.start);
        let data_bytes: u64 = bytes.sum();
        self.blocks += entry.has.len();
        self.zero_blocks += entry.zero.len();
        self.data_bytes += data_bytes;
        self.file_bytes += data_bytes + ENTRY_BYTES;
    }
}

/// An opened layer.
#[derive(Debug)]
pub struct Layer {
    file: File,
    length: u64,
    digest: Digest,
    entries: Vec<Entry>,
}

impl Layer {
    /// Reads and checks the table of a layer, which is of `expected_len` bytes of disk or memory if that is known.
    ///
    /// # Errors
    /// When the file is not a layer, is damaged, or belongs to something of another length.
    pub fn open(file: File, expected_len: Option<u64>) -> Result<Self, LayerError> {
        let file_len = file_len(&file)?;
        let mut footer = [0; FOOTER_LEN];
        file.read_exact_at(&mut footer, file_len.checked_sub(FOOTER_BYTES).ok_or(LayerError::Foreign)?)?;
        let (footer, digest) = Footer::decode(&footer, file_len)?;
        match expected_len {
            Some(expected) if expected != footer.length => {
                return Err(LayerError::Whole { found: footer.length, expected });
            }
            _ => {}
        }
        let mut at = footer.table_at();
        let table = |bytes: &mut [u8]| {
            file.read_exact_at(bytes, at)?;
            at += u64::try_from(bytes.len()).expect("usize fits in u64");
            Ok(())
        };
        let digest = Digest::new(digest);
        let entries = read_table(table, &footer, digest)?;
        Ok(Self { file, length: footer.length, digest, entries })
    }

    /// Its name: what all of it adds up to.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// How large the disk or memory is that it is a layer of.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.length
    }

    /// What it comes to.
    #[must_use]
    pub fn stats(&self) -> LayerStats {
        let mut stats = LayerStats::empty();
        self.entries.iter().for_each(|entry| stats.add(entry, self.length));
        stats
    }

    /// The blocks it has, neighbours of a kind together, in ascending order. A run ends with its region at the latest.
    pub fn blocks(&self) -> impl Iterator<Item = (Range<u64>, Kind)> {
        self.entries.iter().flat_map(Entry::runs)
    }

    /// The file. What is behind [`Layer::len_bytes`] in it is not part of the disk or memory.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// The file, when the table is not needed any more.
    #[must_use]
    pub fn into_file(self) -> File {
        self.file
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The bytes of a region's blocks, one behind the other, in the front part of a buffer that has room for a region.
    pub(crate) fn read_region<'b>(&self, entry: &Entry, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let mut end = 0;
        for run in entry.data_runs() {
            let bytes = bytes_of(&run, self.length);
            let start = end;
            end += len_of(&bytes);
            self.file.read_exact_at(&mut buffer[start..end], bytes.start)?;
        }
        Ok(&buffer[..end])
    }
}

/// Reads as many entries as the footer says, piece by piece as they come; together they must add up to the digest.
pub(crate) fn read_table(
    mut fill: impl FnMut(&mut [u8]) -> io::Result<()>,
    footer: &Footer,
    digest: Digest,
) -> Result<Vec<Entry>, LayerError> {
    let (mut entries, mut hasher) = (Vec::new(), blake3::Hasher::new());
    let mut chunk = vec![0; CHUNK_ENTRIES * ENTRY_LEN];
    let mut left = footer.entries;
    while left > 0 {
        let count = usize::try_from(left).map_or(CHUNK_ENTRIES, |left| left.min(CHUNK_ENTRIES));
        let bytes = &mut chunk[..count * ENTRY_LEN];
        fill(bytes)?;
        hasher.update(bytes);
        for entry in bytes.as_chunks().0 {
            let entry = Entry::decode(entry);
            check_entry(&entry, entries.last(), footer.length).map_err(|what| LayerError::Table { what })?;
            entries.push(entry);
        }
        left -= u64::try_from(count).expect("usize fits in u64");
    }
    hasher.update(&footer.encode());
    if digest != hasher.finalize().into() {
        return Err(LayerError::Table { what: "it does not match its digest" });
    }
    Ok(entries)
}

fn check_entry(entry: &Entry, before: Option<&Entry>, length: u64) -> Result<(), &'static str> {
    if before.is_some_and(|before| before.region >= entry.region) {
        return Err("its regions are not in order");
    }
    if entry.has.is_empty() {
        return Err("it has an entry without a block");
    }
    if !(entry.zero - entry.has).is_empty() {
        return Err("it has a block that is zero and not there");
    }
    let blocks = blocks::count(length);
    if entry.region > blocks / REGION_BLOCKS || entry.first() + entry.has.end() > blocks {
        return Err("it has a block beyond the end");
    }
    Ok(())
}

const _: () = assert!(MAX_LENGTH.is_multiple_of(BLOCK_BYTES), "block numbers times the block size cannot overflow");
