//! Writing a layer, block after block.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::xxh3_64;

use crate::blocks::{self, BLOCK, BLOCK_BYTES, BlockSet, REGION, REGION_BLOCKS, bytes_of, len_of};
use crate::digest::Digest;
use crate::format::{ENTRY_BYTES, ENTRY_LEN, Entry, FOOTER_BYTES, Footer, MAX_LENGTH, table_at};
use crate::layer::{Layer, LayerStats};
use crate::sparse::{Copier, expect_empty, file_len};

/// A layer that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its name.
    pub digest: Digest,
    /// What it comes to.
    pub stats: LayerStats,
}

/// Writes a layer into an empty file. Blocks come in ascending order, each once; what is written has nothing but
/// their contents in it, however they came. Nothing is synced.
#[derive(Debug)]
pub struct Writer<'f> {
    to: &'f File,
    length: u64,
    /// The first block that may come next.
    next: u64,
    region: Region,
    copier: Copier<'f>,
    /// The entries so far, as they will be in the file.
    table: Vec<u8>,
    stats: LayerStats,
}

/// A region of which blocks have come: written and summed up at once, when all of them have.
#[derive(Debug, Default)]
struct Region {
    number: u64,
    has: BlockSet,
    zero: BlockSet,
    /// Those that are not zero, one behind the other.
    data: Vec<u8>,
}

impl<'f> Writer<'f> {
    /// Begins a layer of a disk or memory of this length.
    ///
    /// # Errors
    /// When the file is not empty, or the length is more than [`MAX_LENGTH`].
    pub fn create(to: &'f File, length: u64) -> io::Result<Self> {
        if length > MAX_LENGTH {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        expect_empty(to)?;
        let (region, copier, stats) = (Region::default(), Copier::new(to), LayerStats::empty());
        Ok(Self { to, length, next: 0, region, copier, table: Vec::new(), stats })
    }

    /// Adds the contents of one block or of many neighbours; those that are zero become [`Kind::Zero`].
    ///
    /// [`Kind::Zero`]: crate::Kind::Zero
    ///
    /// # Errors
    /// When these are not whole blocks (the last one of all ends with the length), do not come in order, or the host
    /// cannot write.
    pub fn put(&mut self, block: u64, bytes: &[u8]) -> io::Result<()> {
        let len = u64::try_from(bytes.len()).expect("usize fits in u64");
        let run = self.claim(block, blocks::count(len))?;
        if len_of(&bytes_of(&run, self.length)) != bytes.len() {
            return Err(invalid("a layer has whole blocks only"));
        }
        for (block, bytes) in run.zip(bytes.chunks(BLOCK)) {
            self.enter(block / REGION_BLOCKS)?;
            self.region.push(block % REGION_BLOCKS, bytes);
        }
        Ok(())
    }

    /// Adds blocks that became zero.
    ///
    /// # Errors
    /// When they do not come in order, or the host cannot write.
    pub fn zero(&mut self, block: u64, count: u64) -> io::Result<()> {
        for block in self.claim(block, count)? {
            self.enter(block / REGION_BLOCKS)?;
            self.region.push_zero(block % REGION_BLOCKS);
        }
        Ok(())
    }

    /// Adds a whole region as another layer has it, without reading it. `entry` may leave out blocks that are zero.
    pub(crate) fn adopt(&mut self, from: &Layer, entry: &Entry) -> io::Result<()> {
        self.claim(entry.first(), entry.has.end())?;
        self.enter(entry.region)?;
        for run in entry.data_runs() {
            self.copier.copy(from.file(), bytes_of(&run, self.length))?;
        }
        self.add(entry);
        self.next = self.next.max(entry.first() + REGION_BLOCKS);
        Ok(())
    }

    /// Writes the table. Only now is it a layer.
    ///
    /// # Errors
    /// When the host cannot write, or has not kept what was written where it was written.
    pub fn finish(mut self) -> io::Result<Written> {
        self.flush()?;
        let entries = u64::try_from(self.table.len() / ENTRY_LEN).expect("usize fits in u64");
        let summed = Footer { length: self.length, entries }.encode();
        let digest: Digest = blake3::Hasher::new().update(&self.table).update(&summed).finalize().into();
        let table_at = table_at(self.length);
        let footer_at = table_at + entries * ENTRY_BYTES;
        self.to.write_all_at(&self.table, table_at)?;
        self.to.write_all_at(&[&summed[..], digest.as_bytes()].concat(), footer_at)?;
        // A file opened for appending takes no heed of places.
        if file_len(self.to)? != footer_at + FOOTER_BYTES {
            return Err(io::Error::other("a layer's file did not keep what was written where it was written"));
        }
        Ok(Written { digest, stats: self.stats })
    }

    fn claim(&mut self, block: u64, count: u64) -> io::Result<Range<u64>> {
        let end = block.checked_add(count).filter(|end| *end <= blocks::count(self.length));
        match end {
            Some(end) if block >= self.next => {
                self.next = end;
                Ok(block..end)
            }
            _ => Err(invalid("a layer's blocks come in ascending order and end with its length")),
        }
    }

    /// Goes on to a region, which is not before the present one.
    fn enter(&mut self, number: u64) -> io::Result<()> {
        if number != self.region.number {
            self.flush()?;
            self.region.number = number;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let Region { number, has, zero, ref data } = self.region;
        if has.is_empty() {
            return Ok(());
        }
        let digest = blake3::hash(data).into();
        let entry = Entry { region: number, has, zero, quick: xxh3_64(data), digest };
        let mut rest = &data[..];
        for run in entry.data_runs() {
            let bytes = bytes_of(&run, self.length);
            let (piece, after) = rest.split_at(len_of(&bytes));
            self.to.write_all_at(piece, bytes.start)?;
            rest = after;
        }
        self.add(&entry);
        self.region.clear();
        Ok(())
    }

    fn add(&mut self, entry: &Entry) {
        self.table.extend_from_slice(&entry.encode());
        self.stats.add(entry, self.length);
    }
}

impl Region {
    fn push(&mut self, block: u64, bytes: &[u8]) {
        if blocks::is_zero(bytes) {
            return self.push_zero(block);
        }
        if self.data.capacity() == 0 {
            self.data.reserve_exact(REGION);
        }
        self.has.insert(block..block + 1);
        self.data.extend_from_slice(bytes);
    }

    fn push_zero(&mut self, block: u64) {
        self.has.insert(block..block + 1);
        self.zero.insert(block..block + 1);
    }

    fn clear(&mut self) {
        (self.has, self.zero) = (BlockSet::default(), BlockSet::default());
        self.data.clear();
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

const _: () = assert!(REGION as u64 == REGION_BLOCKS * BLOCK_BYTES);
