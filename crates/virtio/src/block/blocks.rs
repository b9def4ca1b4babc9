//! A disk as blocks: parts of it, sets of blocks, and runs of blocks that belong together.

use std::io;
use std::ops::Range;

/// The unit in which layers are filled: the page size, and the block size of the file systems above and below.
pub(super) const BLOCK: usize = 4096;
pub(super) const BLOCK_BYTES: u64 = BLOCK as u64;

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

/// Cuts a range of blocks where what is said about them changes.
pub(super) fn runs<T: PartialEq>(blocks: Range<u64>, say: impl Fn(u64) -> T) -> impl Iterator<Item = (Range<u64>, T)> {
    let mut next = blocks.start;
    std::iter::from_fn(move || {
        let start = next;
        (start < blocks.end).then(|| {
            let said = say(start);
            next = (start..blocks.end).find(|block| say(*block) != said).unwrap_or(blocks.end);
            (start..next, said)
        })
    })
}

/// How many words of a map are made at once: a page of them.
pub(super) const CHUNK_WORDS: usize = 512;

/// A set of blocks: bit `n % 64` of word `n / 64` stands for block `n`.
///
/// Words are made in chunks when a block of theirs is inserted, so that an empty set costs next to nothing. (Zeroed
/// memory from the allocator is not it: what was used before is cleared by hand, and a VM would own all of it.)
#[derive(Debug)]
pub(super) struct BlockMap {
    chunks: Vec<Option<Box<[u64; CHUNK_WORDS]>>>,
    words: usize,
}

impl BlockMap {
    /// How many words the set of a disk of this length has.
    pub(super) fn word_count(disk_len: u64) -> io::Result<usize> {
        usize::try_from(count(disk_len).div_ceil(64)).map_err(|_| io::ErrorKind::FileTooLarge.into())
    }

    /// None of the disk's blocks.
    pub(super) fn new(disk_len: u64) -> io::Result<Self> {
        let words = Self::word_count(disk_len)?;
        Ok(Self { chunks: vec![None; words.div_ceil(CHUNK_WORDS)], words })
    }

    /// All words, a chunk at a time; nothing for one that is empty, beside its length.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (usize, Option<&[u64]>)> {
        let lens = (0..self.words).step_by(CHUNK_WORDS).map(|first| CHUNK_WORDS.min(self.words - first));
        lens.zip(&self.chunks).map(|(len, chunk)| (len, chunk.as_ref().map(|chunk| &chunk[..len])))
    }

    fn slot(block: u64) -> (usize, u64) {
        (usize::try_from(block / 64).unwrap_or(usize::MAX), 1 << (block % 64))
    }

    fn word(&self, index: usize) -> u64 {
        let chunk = self.chunks.get(index / CHUNK_WORDS).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk[index % CHUNK_WORDS])
    }

    pub(super) fn has(&self, block: u64) -> bool {
        let (index, bit) = Self::slot(block);
        self.word(index) & bit != 0
    }

    pub(super) fn insert(&mut self, blocks: Range<u64>) {
        for block in blocks {
            let (index, bit) = Self::slot(block);
            if let Some(chunk) = self.chunks.get_mut(index / CHUNK_WORDS) {
                chunk.get_or_insert_with(|| Box::new([0; CHUNK_WORDS]))[index % CHUNK_WORDS] |= bit;
            }
        }
    }

    /// The set as runs of neighbours. Empty stretches are passed a word at a time.
    pub(super) fn filled(&self) -> impl Iterator<Item = Range<u64>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = self.find(next, 0)?;
            next = self.find(start, u64::MAX).unwrap_or_else(|| first_block(self.words));
            Some(start..next)
        })
    }

    /// The first block from here on that is in the set (`flip` 0) or is not (`flip` all ones).
    fn find(&self, from: u64, flip: u64) -> Option<u64> {
        let (first, bit) = Self::slot(from);
        let mut unseen = !(bit - 1);
        (first..self.words).find_map(|index| {
            let hits = (self.word(index) ^ flip) & std::mem::replace(&mut unseen, u64::MAX);
            (hits != 0).then(|| first_block(index) + u64::from(hits.trailing_zeros()))
        })
    }
}

/// The block of a word's lowest bit.
fn first_block(word: usize) -> u64 {
    64 * u64::try_from(word).expect("usize fits in u64")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two chunks and a bit of a third.
    const BLOCKS: u64 = 2 * 64 * 512 + 70;

    proptest! {
        #[test]
        fn filled_runs_are_the_set(ranges in prop::collection::vec((0..BLOCKS, 0_u64..150), 0..8)) {
            let mut map = BlockMap::new(BLOCKS * BLOCK_BYTES).unwrap();
            for (start, len) in ranges {
                map.insert(start..(start + len).min(BLOCKS));
            }
            let expected: Vec<_> =
                runs(0..BLOCKS, |block| map.has(block)).filter_map(|(run, inside)| inside.then_some(run)).collect();
            prop_assert_eq!(map.filled().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn only_chunks_that_have_blocks_are_made() {
        let mut map = BlockMap::new(BLOCKS * BLOCK_BYTES).unwrap();
        assert_eq!(map.chunks().collect::<Vec<_>>(), [(512, None), (512, None), (2, None)]);
        map.insert(BLOCKS - 1..BLOCKS + 10_000);
        assert_eq!(map.chunks().collect::<Vec<_>>()[..2], [(512, None), (512, None)]);
        assert_eq!(map.chunks().last().unwrap().1.unwrap()[0], 0);
        assert!(map.has(BLOCKS - 1) && !map.has(0) && !map.has(u64::MAX));
    }

    #[test]
    fn a_short_last_block_is_covered_by_its_bytes() {
        let span = Span::new(BLOCK_BYTES, 10).unwrap();
        assert!(span.covers(1, BLOCK_BYTES + 10));
        assert!(!span.covers(1, BLOCK_BYTES + 11));
        assert_eq!(span.blocks(), 1..2);
        Span::new(u64::MAX, 2).unwrap_err();
    }
}
