//! Guest memory as a sequence of pieces, consumed from the front.

use std::collections::VecDeque;

use vm_memory::{Bytes, VolatileSlice};

/// A list of pieces of memory that another party may change at any time. Everything that moves data takes it from the
/// front, so a caller can hand out parts without counting offsets.
#[derive(Clone, Debug, Default)]
pub struct Buffers<'a> {
    slices: VecDeque<VolatileSlice<'a>>,
    len: usize,
}

impl<'a> Buffers<'a> {
    /// Adds a piece at the end.
    pub(crate) fn push(&mut self, slice: VolatileSlice<'a>) {
        if !slice.is_empty() {
            self.len += slice.len();
            self.slices.push_back(slice);
        }
    }

    /// Adds all pieces of another list at the end.
    pub(crate) fn append(&mut self, other: Self) {
        self.len += other.len;
        self.slices.extend(other.slices);
    }

    /// How many bytes are left.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces in order; none is empty.
    pub fn slices(&self) -> impl Iterator<Item = &VolatileSlice<'a>> {
        self.slices.iter()
    }

    /// Takes the first `count` bytes, or all if there are fewer.
    pub fn take(&mut self, count: usize) -> Self {
        let mut taken = Buffers::default();
        while taken.len < count {
            let Some(slice) = self.slices.pop_front() else { break };
            self.len -= slice.len();
            let wanted = count - taken.len;
            if slice.len() <= wanted {
                taken.push(slice);
                continue;
            }
            let (first, rest) = slice.split_at(wanted).expect("wanted is less than the slice's length");
            taken.push(first);
            self.len += rest.len();
            self.slices.push_front(rest);
        }
        taken
    }

    /// Drops the first `count` bytes.
    pub(crate) fn skip(&mut self, count: usize) {
        drop(self.take(count));
    }

    /// Copies out as much as there is room for; says how much.
    pub fn copy_to(&mut self, bytes: &mut [u8]) -> usize {
        let taken = self.take(bytes.len());
        let mut done = 0;
        for slice in taken.slices() {
            done += slice.copy_to(&mut bytes[done..]);
        }
        done
    }

    /// Copies in as much as fits; says how much.
    pub fn copy_from(&mut self, bytes: &[u8]) -> usize {
        let taken = self.take(bytes.len());
        let mut done = 0;
        for slice in taken.slices() {
            slice.write_slice(&bytes[done..done + slice.len()], 0).expect("the part is as long as the slice");
            done += slice.len();
        }
        done
    }
}

impl<'a> From<VolatileSlice<'a>> for Buffers<'a> {
    fn from(slice: VolatileSlice<'a>) -> Self {
        let mut buffers = Self::default();
        buffers.push(slice);
        buffers
    }
}

impl<'a> From<&'a mut [u8]> for Buffers<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        VolatileSlice::from(bytes).into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_cut_gives_the_same_bytes(
            mut pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8),
            cuts in prop::collection::vec(0_usize..30, 0..12),
        ) {
            let whole: Vec<u8> = pieces.concat();
            let mut buffers = Buffers::default();
            for piece in &mut pieces {
                buffers.append(Buffers::from(piece.as_mut_slice()));
            }
            let mut read = Vec::new();
            for cut in cuts {
                let mut part = buffers.take(cut);
                prop_assert_eq!(part.len(), cut.min(whole.len() - read.len()));
                let mut bytes = vec![0; cut];
                let count = part.copy_to(&mut bytes);
                prop_assert!(part.is_empty());
                read.extend_from_slice(&bytes[..count]);
            }
            prop_assert_eq!(buffers.len(), whole.len() - read.len());
            prop_assert!(whole.starts_with(&read));
        }
    }

    #[test]
    fn what_is_copied_in_lands_across_pieces() {
        let (mut first, mut second) = ([0; 3], [0; 4]);
        let mut buffers = Buffers::from(&mut first[..]);
        buffers.append(Buffers::from(&mut second[..]));
        buffers.skip(1);
        assert_eq!(buffers.copy_from(&[1, 2, 3, 4]), 4);
        assert_eq!(buffers.copy_from(&[5, 6, 7, 8]), 2);
        assert_eq!((first, second), ([0, 1, 2], [3, 4, 5, 6]));
    }
}
