//! Where the parts of a file system lie.
//!
//! ```text
//! group   | superblock, descriptors (some groups) | block bitmap | inode bitmap | inode table | data ... |
//!           0 and powers of 3, 5, 7                 1 block        1 block        16 per block
//! ```

use crate::BLOCK;

/// As many as one block of bitmap has bits.
pub(crate) const GROUP_BLOCKS: u32 = 32768;
pub(crate) const INODE_BYTES: u32 = 256;
pub(crate) const INODES_PER_BLOCK: u32 = 16;
pub(crate) const DESCRIPTOR_BYTES: usize = 32;
const DESCRIPTORS_PER_BLOCK: u32 = 128;
/// The first number that is not the file system's own.
pub(crate) const FIRST_INODE: u32 = 11;
/// One per 16 KiB, as for Debian's images.
const USUAL_INODES: u32 = 8192;
/// A group with less room for data is not worth its tables.
const MIN_DATA: u32 = 64;

/// The sizes everything else follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) blocks: u32,
    pub(crate) groups: u32,
    pub(crate) inodes_per_group: u32,
}

impl Geometry {
    /// For a file system of so many blocks with at least so many inodes; nothing when they do not fit.
    pub(crate) fn new(blocks: u32, inodes: u32) -> Option<Self> {
        let groups = blocks.div_ceil(GROUP_BLOCKS).max(1);
        let needed = inodes.div_ceil(groups).checked_next_multiple_of(INODES_PER_BLOCK)?;
        let inodes_per_group = needed.max(USUAL_INODES);
        if inodes_per_group > GROUP_BLOCKS {
            return None;
        }
        let whole = Self { blocks, groups, inodes_per_group };
        let last = groups - 1;
        if whole.first_data(last) + MIN_DATA <= whole.end(last) {
            return Some(whole);
        }
        // The rest of the disk is too small for a group.
        if last == 0 { None } else { Self::new(last * GROUP_BLOCKS, inodes) }
    }

    /// The smallest in whole groups with so much room.
    pub(crate) fn for_room(data: u64, inodes: u32, max_blocks: u32) -> Option<Self> {
        let first = u32::try_from(data.div_ceil(u64::from(GROUP_BLOCKS))).ok()?.max(1);
        let candidates =
            (first..=max_blocks / GROUP_BLOCKS).filter_map(|groups| Self::new(groups * GROUP_BLOCKS, inodes));
        candidates.into_iter().find(|geometry| geometry.room() >= data)
    }

    pub(crate) const fn start(&self, group: u32) -> u32 {
        group * GROUP_BLOCKS
    }

    /// One after its last block.
    pub(crate) fn end(&self, group: u32) -> u32 {
        self.blocks.min(self.start(group).saturating_add(GROUP_BLOCKS))
    }

    /// Whether it has a superblock and the descriptors of all groups.
    pub(crate) fn has_super(&self, group: u32) -> bool {
        let is_power = |base: u32| {
            let mut power = base;
            while power < group {
                power = power.saturating_mul(base);
            }
            power == group
        };
        group <= 1 || [3, 5, 7].into_iter().any(is_power)
    }

    pub(crate) fn descriptor_blocks(&self) -> u32 {
        self.groups.div_ceil(DESCRIPTORS_PER_BLOCK)
    }

    pub(crate) fn block_bitmap(&self, group: u32) -> u32 {
        self.start(group) + if self.has_super(group) { 1 + self.descriptor_blocks() } else { 0 }
    }

    pub(crate) fn inode_bitmap(&self, group: u32) -> u32 {
        self.block_bitmap(group) + 1
    }

    pub(crate) fn inode_table(&self, group: u32) -> u32 {
        self.block_bitmap(group) + 2
    }

    pub(crate) fn first_data(&self, group: u32) -> u32 {
        self.inode_table(group) + self.inodes_per_group / INODES_PER_BLOCK
    }

    pub(crate) const fn inodes(&self) -> u32 {
        self.groups * self.inodes_per_group
    }

    /// The group an inode is in.
    pub(crate) const fn group_of(&self, inode: u32) -> u32 {
        (inode - 1) / self.inodes_per_group
    }

    /// Where an inode lies, in bytes from the start.
    pub(crate) fn inode_at(&self, inode: u32) -> u64 {
        let group = self.group_of(inode);
        let index = (inode - 1) % self.inodes_per_group;
        u64::from(self.inode_table(group)) * BLOCK + u64::from(index * INODE_BYTES)
    }

    /// How many blocks are left for data.
    pub(crate) fn room(&self) -> u64 {
        (0..self.groups).map(|group| u64::from(self.end(group) - self.first_data(group))).sum()
    }
}
