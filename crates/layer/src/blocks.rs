//! Blocks, and the set of a region's blocks.

use std::ops::{BitAnd, BitOr, Range, Sub};

/// The unit of everything: the page size, and the block size of the file systems above and below.
pub const BLOCK_BYTES: u64 = 4096;
/// How many blocks share an entry of the table.
pub const REGION_BLOCKS: u64 = 256;

pub(crate) const BLOCK: usize = 4096;
pub(crate) const REGION: usize = 256 * BLOCK;
const WORDS: usize = 4;

/// How many blocks there are in so many bytes; the last one may be a short one.
pub(crate) const fn count(length: u64) -> u64 {
    length.div_ceil(BLOCK_BYTES)
}

/// Where blocks are, in bytes. They must lie within the length.
pub(crate) fn bytes_of(blocks: &Range<u64>, length: u64) -> Range<u64> {
    blocks.start * BLOCK_BYTES..(blocks.end * BLOCK_BYTES).min(length)
}

/// How much that is, for something held in memory.
pub(crate) fn len_of(bytes: &Range<u64>) -> usize {
    usize::try_from(bytes.end - bytes.start).expect("what is held in memory fits in usize")
}

/// Whether there is nothing but zeroes; content that is not zero is seldom read far.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(128).all(|part| part.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Some of the blocks of a region, counted from its first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockSet(pub(crate) [u64; WORDS]);

impl BlockSet {
    /// Adds the region's blocks of this range.
    pub(crate) fn insert(&mut self, blocks: Range<u64>) {
        for block in blocks {
            self.0[word(block)] |= 1 << (block % 64);
        }
    }

    pub(crate) fn contains(self, block: u64) -> bool {
        self.0[word(block)] >> (block % 64) & 1 == 1
    }

    pub(crate) fn len(self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Neighbours together, in ascending order.
    pub(crate) fn runs(self) -> impl Iterator<Item = Range<u64>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = self.find(next, 0);
            next = self.find(start, u64::MAX);
            (start < REGION_BLOCKS).then_some(start..next)
        })
    }

    /// One past the last block.
    pub(crate) fn end(self) -> u64 {
        self.runs().last().map_or(0, |run| run.end)
    }

    /// The first block from here on that is in the set (`flip` 0) or is not (`flip` all ones), or else the region's end.
    fn find(self, from: u64, flip: u64) -> u64 {
        let mut unseen = u64::MAX << (from % 64);
        for index in (from / 64..).take_while(|index| *index < REGION_BLOCKS / 64) {
            let hits = (self.0[word(index * 64)] ^ flip) & std::mem::replace(&mut unseen, u64::MAX);
            if hits != 0 {
                return index * 64 + u64::from(hits.trailing_zeros());
            }
        }
        REGION_BLOCKS
    }

    fn zip(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|index| with(self.0[index], other.0[index])))
    }
}

impl BitAnd for BlockSet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }
}

impl BitOr for BlockSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }
}

impl Sub for BlockSet {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }
}

fn word(block: u64) -> usize {
    usize::try_from(block / 64).expect("a block of a region")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_the_set(words in any::<[u64; WORDS]>(), sparse in any::<[u64; WORDS]>()) {
            let set = BlockSet(words) & BlockSet(sparse);
            let mut again = BlockSet::default();
            let mut end = None;
            for run in set.runs() {
                prop_assert!(run.start < run.end && end.is_none_or(|end| end < run.start), "{:?}", run);
                end = Some(run.end);
                again.insert(run);
            }
            prop_assert_eq!(again, set);
            prop_assert_eq!(set.end(), end.unwrap_or(0));
            prop_assert_eq!(set.len(), set.runs().map(|run| run.end - run.start).sum::<u64>());
        }
    }

    #[test]
    fn all_and_nothing() {
        let mut all = BlockSet::default();
        assert_eq!((all.runs().count(), all.end(), all.is_empty()), (0, 0, true));
        all.insert(0..REGION_BLOCKS);
        let mut runs = all.runs();
        assert_eq!((runs.next(), runs.next(), all.end()), (Some(0..REGION_BLOCKS), None, REGION_BLOCKS));
        assert!((all - all).is_empty() && (all | all) == all);
    }
}
