//! A disk as blocks, and parts of it.

use std::io;
use std::ops::Range;

pub(super) use layer::BLOCK_BYTES;

pub(super) const BLOCK: usize = 4096;
const _: () = assert!(BLOCK as u64 == BLOCK_BYTES);

/// How many blocks a disk of this length has; the last one may be a short one.
pub(super) const fn count(disk_len: u64) -> u64 {
    disk_len.div_ceil(BLOCK_BYTES)
}

/// A part of the disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) len: usize,
}

impl Span {
    pub(super) fn new(offset: u64, len: usize) -> io::Result<Self> {
        match u64::try_from(len).ok().and_then(|len| offset.checked_add(len)) {
            Some(_) => Ok(Self { offset, len }),
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    pub(super) fn end(self) -> u64 {
        self.offset + u64::try_from(self.len).expect("usize fits in u64")
    }

    /// The blocks it touches.
    pub(super) fn blocks(self) -> Range<u64> {
        self.offset / BLOCK_BYTES..count(self.end())
    }

    /// The part of it that lies in these blocks.
    pub(super) fn within(self, blocks: &Range<u64>) -> Self {
        let start = self.offset.max(blocks.start.saturating_mul(BLOCK_BYTES));
        let end = self.end().min(blocks.end.saturating_mul(BLOCK_BYTES));
        Self { offset: start, len: usize::try_from(end.saturating_sub(start)).expect("no longer than self.len") }
    }

    /// Whether it covers all of a block of a disk of this length.
    pub(super) fn covers(self, block: u64, disk_len: u64) -> bool {
        let start = block * BLOCK_BYTES;
        self.offset <= start && self.end() >= (start + BLOCK_BYTES).min(disk_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_last_block_is_covered_by_its_bytes() {
        let span = Span::new(BLOCK_BYTES, 10).unwrap();
        assert!(span.covers(1, BLOCK_BYTES + 10));
        assert!(!span.covers(1, BLOCK_BYTES + 11));
        assert_eq!(span.blocks(), 1..2);
        Span::new(u64::MAX, 2).unwrap_err();
    }
}
