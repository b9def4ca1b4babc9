//! Whether a layer's blocks are what its table says, and nothing but holes is between them.

use std::ops::Range;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::xxh3_64;

use crate::blocks::{self, BLOCK, BLOCK_BYTES, REGION, bytes_of, len_of};
use crate::format::{Entry, table_at};
use crate::layer::{Layer, LayerError};
use crate::sparse::extents;

impl Layer {
    /// Reads all blocks and finds what came about by accident, as fast as they can be read.
    ///
    /// # Errors
    /// When the file cannot be read or is not what was written.
    pub fn check_quick(&self) -> Result<(), LayerError> {
        self.check_blocks(|entry, bytes| xxh3_64(bytes) == entry.quick, |_| {})
    }

    /// Reads all blocks and finds what anybody may have done to them. `advance` hears how many bytes of data are done,
    /// of [`LayerStats::data_bytes`](crate::LayerStats::data_bytes).
    ///
    /// # Errors
    /// When the file cannot be read or is not what was written.
    pub fn check(&self, advance: impl FnMut(u64)) -> Result<(), LayerError> {
        self.check_blocks(is_region, advance)
    }

    fn check_blocks(
        &self,
        same: impl Fn(&Entry, &[u8]) -> bool,
        mut advance: impl FnMut(u64),
    ) -> Result<(), LayerError> {
        let (mut buffer, mut done) = (vec![0; REGION], 0);
        for entry in self.entries() {
            let bytes = self.read_region(entry, &mut buffer)?;
            check_region(entry, bytes, &same)?;
            done += u64::try_from(bytes.len()).expect("usize fits in u64");
            advance(done);
        }
        self.check_holes(&mut buffer)
    }

    /// Looks for bytes that are not zero outside of the blocks: whoever maps the file would see them.
    fn check_holes(&self, buffer: &mut [u8]) -> Result<(), LayerError> {
        let length = self.len_bytes();
        let runs = self.entries().iter().flat_map(Entry::data_runs);
        let mut known = runs.map(|run| bytes_of(&run, length)).peekable();
        for extent in extents(self.file(), 0..table_at(length)) {
            let mut rest = extent?;
            while !rest.is_empty() {
                while known.next_if(|known| known.end <= rest.start).is_some() {}
                let gap_end = match known.peek() {
                    Some(known) if known.start <= rest.start => {
                        rest.start = known.end.min(rest.end);
                        continue;
                    }
                    Some(known) => known.start.min(rest.end),
                    None => rest.end,
                };
                self.expect_zero(rest.start..gap_end, buffer)?;
                rest.start = gap_end;
            }
        }
        Ok(())
    }

    fn expect_zero(&self, mut part: Range<u64>, buffer: &mut [u8]) -> Result<(), LayerError> {
        while !part.is_empty() {
            let len = len_of(&(0..part.end - part.start)).min(buffer.len());
            self.file().read_exact_at(&mut buffer[..len], part.start)?;
            if let Some(page) = buffer[..len].chunks(BLOCK).position(|page| !blocks::is_zero(page)) {
                let offset = part.start + u64::try_from(page * BLOCK).expect("usize fits in u64");
                return Err(LayerError::Stray { offset });
            }
            part.start += u64::try_from(len).expect("usize fits in u64");
        }
        Ok(())
    }
}

/// Whether these are the bytes of a region's blocks, whoever may have touched them.
pub(crate) fn is_region(entry: &Entry, bytes: &[u8]) -> bool {
    xxh3_64(bytes) == entry.quick && blake3::hash(bytes) == blake3::Hash::from_bytes(entry.digest)
}

/// Refuses bytes that are not those of a region, or that its table should have called zero.
pub(crate) fn check_region(
    entry: &Entry,
    bytes: &[u8],
    same: impl Fn(&Entry, &[u8]) -> bool,
) -> Result<(), LayerError> {
    if !same(entry, bytes) {
        return Err(LayerError::Contents { offset: entry.first() * BLOCK_BYTES });
    }
    if bytes.chunks(BLOCK).any(blocks::is_zero) {
        return Err(LayerError::Table { what: "it does not say of a block that it is zero" });
    }
    Ok(())
}
