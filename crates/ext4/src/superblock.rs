//! The superblock, and the descriptors of the groups.

use crate::geometry::{DESCRIPTOR_BYTES, FIRST_INODE, GROUP_BLOCKS, Geometry, INODE_BYTES};
use crate::inode::EXTRA;

pub(crate) const LEN: usize = 1024;
/// The first one leaves room for a boot sector.
pub(crate) const OFFSET: u64 = 1024;
/// Attributes, and the right to index directories.
const COMPATIBLE: u32 = 0x8 | 0x20;
/// Kinds in directories, extents.
const INCOMPATIBLE: u32 = 0x2 | 0x40;
/// Few superblocks, large files (both kinds), many subdirectories, large inodes.
const READ_ONLY_COMPATIBLE: u32 = 0x1 | 0x2 | 0x8 | 0x20 | 0x40;
/// `user.` attributes and access control lists are on, as by mke2fs.
const MOUNT_OPTIONS: u32 = 0x4 | 0x8;
const HALF_MD4: u8 = 1;
const UNSIGNED_HASH: u32 = 2;

/// What is left of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) free_blocks: u32,
    pub(crate) free_inodes: u32,
    pub(crate) directories: u32,
}

/// What a superblock says besides sizes.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) uuid: [u8; 16],
    pub(crate) label: [u8; 16],
}

/// The superblock as it lies in `group`.
pub(crate) fn encode(geometry: &Geometry, usage: &[Usage], identity: &Identity, group: u32) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    let mut number = |at: usize, value: u32| put(at, &value.to_le_bytes());
    number(0, geometry.inodes());
    number(4, geometry.blocks);
    number(12, usage.iter().map(|group| group.free_blocks).sum());
    number(16, usage.iter().map(|group| group.free_inodes).sum());
    // 1 KiB, shifted: the block's and the cluster's size.
    number(24, 2);
    number(28, 2);
    number(32, GROUP_BLOCKS);
    number(36, GROUP_BLOCKS);
    number(40, geometry.inodes_per_group);
    // The current revision.
    number(76, 1);
    number(84, FIRST_INODE);
    number(92, COMPATIBLE);
    number(96, INCOMPATIBLE);
    number(100, READ_ONLY_COMPATIBLE);
    number(256, MOUNT_OPTIONS);
    number(352, UNSIGNED_HASH);
    let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX).to_le_bytes();
    // Checked after no number of mounts; the magic; clean; errors are only reported.
    put(54, &u16::MAX.to_le_bytes());
    put(56, &0xef53u16.to_le_bytes());
    put(58, &short(1));
    put(60, &short(1));
    put(88, &short(INODE_BYTES));
    put(90, &short(group));
    put(104, &identity.uuid);
    put(120, &identity.label);
    // The seed of directory hashes, and which hash.
    put(236, &identity.uuid);
    put(252, &[HALF_MD4]);
    put(348, &EXTRA.to_le_bytes());
    put(350, &EXTRA.to_le_bytes());
    bytes
}

/// The descriptors of all groups.
pub(crate) fn descriptors(geometry: &Geometry, usage: &[Usage]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (group, used) in (0..geometry.groups).zip(usage) {
        let places = [geometry.block_bitmap(group), geometry.inode_bitmap(group), geometry.inode_table(group)];
        let counts = [used.free_blocks, used.free_inodes, used.directories];
        bytes.extend(places.into_iter().flat_map(u32::to_le_bytes));
        bytes.extend(counts.into_iter().flat_map(|count| u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes()));
        bytes.resize(bytes.len().next_multiple_of(DESCRIPTOR_BYTES), 0);
    }
    bytes
}
