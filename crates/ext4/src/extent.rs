//! Extents: which blocks of the disk are which blocks of a file.
//!
//! Up to four lie in the inode. More lie in blocks, and the inode has the root of a tree over them.

use crate::BLOCK_LEN;

const MAGIC: u16 = 0xf30a;
const RECORD: usize = 12;
/// In the 60 bytes of an inode, after the header.
const IN_INODE: usize = 4;
/// In a block, after the header.
const IN_BLOCK: usize = (BLOCK_LEN - RECORD) / RECORD;
/// Longer ones would mean "not initialised".
pub(crate) const MAX_LEN: u32 = 32768;

/// Blocks of a file that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first, counted in the file.
    pub(crate) logical: u32,
    /// The first, counted on the disk.
    pub(crate) physical: u32,
    /// 1 to [`MAX_LEN`].
    pub(crate) len: u32,
}

/// A node of the tree: where it lies and what it says.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) at: u32,
    pub(crate) bytes: Vec<u8>,
}

/// How many blocks the tree over so many extents needs.
pub(crate) fn tree_blocks(extents: usize) -> u32 {
    let mut total = 0;
    let mut level = extents;
    while level > IN_INODE {
        level = level.div_ceil(IN_BLOCK);
        total += u32::try_from(level).unwrap_or(u32::MAX / 2);
    }
    total
}

/// The 60 bytes of the inode, and the blocks below, which lie at `places`: as many as [`tree_blocks`] says.
pub(crate) fn tree(extents: &[Extent], places: &[u32]) -> ([u8; 60], Vec<Block>) {
    let mut places = places.iter().copied();
    let mut blocks = Vec::new();
    let mut depth = 0;
    let mut level: Vec<(u32, [u8; RECORD])> = extents.iter().map(|extent| (extent.logical, leaf(extent))).collect();
    while level.len() > IN_INODE {
        let nodes = level.chunks(IN_BLOCK).zip(&mut places);
        let above = nodes.map(|(records, at)| {
            blocks.push(Block { at, bytes: node(records, IN_BLOCK, depth) });
            (records[0].0, index(records[0].0, at))
        });
        level = above.collect();
        depth += 1;
    }
    let mut root = [0; 60];
    let bytes = node(&level, IN_INODE, depth);
    root[..bytes.len()].copy_from_slice(&bytes);
    (root, blocks)
}

fn node(records: &[(u32, [u8; RECORD])], max: usize, depth: u16) -> Vec<u8> {
    let count = |n: usize| u16::try_from(n).expect("at most as many as fit into a block").to_le_bytes();
    let header = [MAGIC.to_le_bytes(), count(records.len()), count(max), depth.to_le_bytes(), [0; 2], [0; 2]];
    let mut bytes = header.concat();
    bytes.extend(records.iter().flat_map(|(_, record)| record));
    bytes
}

fn leaf(extent: &Extent) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    let len = u16::try_from(extent.len).expect("an extent has at most 32768 blocks");
    record[..4].copy_from_slice(&extent.logical.to_le_bytes());
    record[4..6].copy_from_slice(&len.to_le_bytes());
    record[8..].copy_from_slice(&extent.physical.to_le_bytes());
    record
}

fn index(logical: u32, at: u32) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..4].copy_from_slice(&logical.to_le_bytes());
    record[4..8].copy_from_slice(&at.to_le_bytes());
    record
}
