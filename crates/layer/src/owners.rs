//! Which of several files has a block, in one look-up whatever their number.

use std::ops::Range;

use crate::blocks;
use crate::format::MAX_LENGTH;
use crate::layer::{Layer, LayerError};
use crate::stack::{MAX_LAYERS, StackError};

/// How many blocks a page of the table is of.
const PAGE_BLOCKS: usize = 2048;

/// A number for each block of a disk or memory: 0, until somebody claims it.
///
/// ```text
/// owner     0 2 0 1 2 2 0        two bytes per block
/// file 2      X     X X
/// file 1      X   X              what a higher file has, too, is never read
/// file 0    X X X X X X X
/// ```
///
/// The table is made in pages when a block of theirs is claimed, so that an empty one costs next to nothing and a copy
/// made by `fork(2)` only what it changes. (Zeroed memory from the allocator is not it: what was used before is cleared
/// by hand, and a VM would own all of it.)
#[derive(Clone, Debug, Default)]
pub struct Owners {
    pages: Vec<Option<Box<[u16; PAGE_BLOCKS]>>>,
}

impl Owners {
    /// Nobody has claimed any of so many blocks.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        let pages = usize::try_from(blocks).unwrap_or(usize::MAX).div_ceil(PAGE_BLOCKS);
        Self { pages: vec![None; pages] }
    }

    /// What layers, lowest first, have of a disk or memory of this length: those of the first belong to 1.
    ///
    /// # Errors
    /// When there are too many, or one is of another length.
    pub fn of_layers(length: u64, layers: &[Layer]) -> Result<Self, StackError> {
        if layers.len() > MAX_LAYERS {
            return Err(StackError::Count { layers: layers.len() });
        }
        if length > MAX_LENGTH {
            return Err(StackError::TooLarge { bytes: length });
        }
        let mut owners = Self::new(blocks::count(length));
        for (number, layer) in (1..).zip(layers) {
            if layer.len_bytes() != length {
                let source = LayerError::Whole { found: layer.len_bytes(), expected: length };
                return Err(StackError::Layer { index: number.into(), source });
            }
            layer.blocks().for_each(|(run, _)| owners.claim(run, number));
        }
        Ok(owners)
    }

    /// Who has a block.
    #[must_use]
    pub fn of(&self, block: u64) -> u16 {
        let (page, slot) = place(block);
        self.page(page).map_or(0, |page| page[slot])
    }

    /// Says who has these blocks from now on. Those beyond the number of blocks nobody can have.
    pub fn claim(&mut self, blocks: Range<u64>, owner: u16) {
        for block in blocks {
            let (page, slot) = place(block);
            let Some(page) = self.pages.get_mut(page) else { return };
            page.get_or_insert_with(|| Box::new([0; PAGE_BLOCKS]))[slot] = owner;
        }
    }

    /// Cuts a range of blocks where their owner changes. What was never claimed is passed a page at a time.
    pub fn runs(&self, blocks: Range<u64>) -> impl Iterator<Item = (Range<u64>, u16)> {
        let mut next = blocks.start;
        std::iter::from_fn(move || {
            let start = next;
            (start < blocks.end).then(|| {
                let owner = self.of(start);
                next = self.end_of(start..blocks.end, owner);
                (start..next, owner)
            })
        })
    }

    /// The first block of a range that somebody else has, or else its end.
    fn end_of(&self, blocks: Range<u64>, owner: u16) -> u64 {
        let mut at = blocks.start;
        while at < blocks.end {
            let (page, slot) = place(at);
            let left = wide(PAGE_BLOCKS - slot);
            let same = match self.page(page) {
                Some(page) => page[slot..].iter().position(|other| *other != owner).map_or(left, wide),
                None if owner == 0 => left,
                None => 0,
            };
            at = at.saturating_add(same);
            if same < left {
                break;
            }
        }
        at.min(blocks.end)
    }

    fn page(&self, index: usize) -> Option<&[u16; PAGE_BLOCKS]> {
        self.pages.get(index).and_then(Option::as_deref)
    }
}

fn place(block: u64) -> (usize, usize) {
    let block = usize::try_from(block).unwrap_or(usize::MAX);
    (block / PAGE_BLOCKS, block % PAGE_BLOCKS)
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).expect("usize fits in u64")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two pages and a bit of a third.
    const BLOCKS: u64 = 2 * 2048 + 70;

    proptest! {
        #[test]
        fn it_is_like_a_plain_table(
            claims in prop::collection::vec((0..BLOCKS, 0_u64..1500, 0_u16..4), 0..8),
            part in (0..BLOCKS, 0..BLOCKS),
        ) {
            let (mut owners, mut model) = (Owners::new(BLOCKS), vec![0; usize::try_from(BLOCKS).unwrap()]);
            for (start, len, owner) in claims {
                let end = (start + len).min(BLOCKS);
                owners.claim(start..end, owner);
                model[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()].fill(owner);
            }
            let mut last = None;
            let mut at = part.0;
            for (run, owner) in owners.runs(part.0..part.1) {
                prop_assert!(run.start == at && run.end > at && last != Some(owner));
                for block in run.clone() {
                    prop_assert_eq!(owner, model[usize::try_from(block).unwrap()]);
                    prop_assert_eq!(owner, owners.of(block));
                }
                (at, last) = (run.end, Some(owner));
            }
            prop_assert_eq!(at, part.0.max(part.1));
        }
    }

    #[test]
    fn only_pages_with_claims_are_made() {
        let mut owners = Owners::new(BLOCKS);
        owners.claim(BLOCKS - 1..BLOCKS, 7);
        owners.claim(u64::MAX - 10..u64::MAX, 7);
        assert!(matches!(owners.pages[..], [None, None, Some(_)]));
        assert_eq!((owners.of(BLOCKS - 1), owners.of(0), owners.of(u64::MAX)), (7, 0, 0));
    }
}
