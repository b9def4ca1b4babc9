//! Every inode gets its number and every block its place, before anything is written.
//!
//! Numbers are given breadth first and in the order of names, blocks in the order of numbers from the first free one
//! on: the same tree always lies the same way, and what is used of the disk is its beginning.

use std::collections::{BTreeMap, VecDeque};

use crate::extent::{self, Extent};
use crate::geometry::{FIRST_INODE, Geometry};
use crate::inode::MAX_LINKS;
use crate::superblock::{Identity, Usage};
use crate::tree::{Content, Kind, Meta, Name, Node, NodeId, Tree};
use crate::xattr::{self, Stored, XattrError};
use crate::{BLOCK, MAX_BYTES, MAX_FILE, directory};

pub(crate) const ROOT_INODE: u32 = 2;
/// A link's target that is shorter lies in the inode.
pub(crate) const SHORT_LINK: usize = 60;
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// A tree that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// It is larger than the file system.
    #[error("the files need {needed} bytes, and there is room for {bytes}")]
    TooSmall {
        /// The room.
        bytes: u64,
        /// What would be enough.
        needed: u64,
    },
    /// It is larger than any file system we make.
    #[error("the files need more than the {MAX_BYTES} bytes that a disk can have")]
    TooLarge,
    /// A file is longer than any we make, or its pieces are no pieces of it.
    #[error("{path}: a file has at most {MAX_FILE} bytes")]
    File {
        /// The file.
        path: String,
    },
    /// Attributes that cannot be stored.
    #[error("{path}")]
    Xattr {
        /// The file that has them.
        path: String,
        /// Why.
        source: XattrError,
    },
    /// A file has too many names.
    #[error("{path} has more than {MAX_LINKS} names")]
    Links {
        /// One of them.
        path: String,
    },
}

/// What a file system shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// How large, in whole blocks.
    pub bytes: u64,
    /// Its identity, from which the hashes of directories are seeded too.
    pub uuid: [u8; 16],
    /// What it is called; at most 16 bytes of it.
    pub label: String,
}

/// How much room a tree needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    inodes: u32,
    blocks: u64,
}

impl Demand {
    /// The size of a file system that has so much room beside the tree; nothing when that is more than a disk has.
    #[must_use]
    pub fn bytes_with_free(&self, free: u64) -> Option<u64> {
        let room = self.blocks.checked_add(free.div_ceil(BLOCK))?;
        // As many again as are used, for what will be made.
        let inodes = self.inodes.checked_mul(2)?;
        let max = u32::try_from(MAX_BYTES / BLOCK).expect("the largest disk has fewer than 2^32 blocks");
        Geometry::for_room(room, inodes, max).map(|geometry| u64::from(geometry.blocks) * BLOCK)
    }
}

/// An inode and what belongs to it.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) node: NodeId,
    /// The inode of the directory it was first found in.
    pub(crate) parent: u32,
    pub(crate) links: u32,
    pub(crate) extents: Vec<Extent>,
    pub(crate) extent_blocks: Vec<u32>,
    /// Whether its attributes take a block. Their bytes are made when they are written: a few attributes take a whole
    /// block, which for all inodes of an image would be more than anybody has.
    has_xattr_block: bool,
    pub(crate) xattr_block: u32,
}

/// A tree that has its place on a disk.
#[derive(Debug)]
pub struct Plan {
    pub(crate) tree: Tree,
    pub(crate) geometry: Geometry,
    pub(crate) identity: Identity,
    /// In the order of their numbers: the root, then from [`FIRST_INODE`] on.
    pub(crate) inodes: Vec<Planned>,
    /// Positions in `inodes` by node.
    positions: Vec<Option<u32>>,
    /// The first block that is not used.
    pub(crate) next: u32,
}

impl Plan {
    /// How much room a tree needs.
    ///
    /// # Errors
    /// When no file system can have it.
    pub fn demand(tree: &Tree) -> Result<Demand, PlanError> {
        let (inodes, _) = walk(tree)?;
        // For `lost+found`, which may have to be added.
        let mut blocks = 1;
        for planned in &inodes {
            let (ranges, needed) = ranges(tree, planned.node)?;
            // A range is split where a group ends.
            let extents = ranges.len() + usize::try_from(needed >> 14).unwrap_or(usize::MAX);
            let beside = u64::from(extent::tree_blocks(extents)) + u64::from(planned.has_xattr_block);
            blocks += needed + beside;
        }
        let count = u32::try_from(inodes.len()).map_err(|_| PlanError::TooLarge)?;
        Ok(Demand { inodes: count.saturating_add(FIRST_INODE), blocks })
    }

    /// Gives everything its place.
    ///
    /// # Errors
    /// When it does not fit, or ext4 has no way to say it.
    pub fn new(mut tree: Tree, spec: &Spec) -> Result<Self, PlanError> {
        let demand = Self::demand(&tree)?;
        let needed = || demand.bytes_with_free(0).unwrap_or(MAX_BYTES);
        let too_small = || PlanError::TooSmall { bytes: spec.bytes, needed: needed() };
        let blocks = u32::try_from(spec.bytes.min(MAX_BYTES) / BLOCK).map_err(|_| PlanError::TooLarge)?;
        let geometry = Geometry::new(blocks, demand.inodes).ok_or_else(too_small)?;
        add_lost_and_found(&mut tree);
        let (mut inodes, positions) = walk(&tree)?;
        let mut allocator = Allocator { geometry, group: 0, next: geometry.first_data(0) };
        for planned in &mut inodes {
            let (ranges, _) = ranges(&tree, planned.node)?;
            allocator.place(planned, &ranges).ok_or_else(too_small)?;
        }
        let mut label = [0; 16];
        label.iter_mut().zip(spec.label.bytes()).for_each(|(place, byte)| *place = byte);
        let identity = Identity { uuid: spec.uuid, label };
        Ok(Self { tree, geometry, identity, inodes, positions, next: allocator.next })
    }

    /// The tree, with what a file system needs besides.
    #[must_use]
    pub const fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Whether anything names the node, so that it is written.
    #[must_use]
    pub fn has(&self, node: NodeId) -> bool {
        self.planned(node).is_some()
    }

    /// The size of the file system.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.geometry.blocks) * BLOCK
    }

    pub(crate) fn planned(&self, node: NodeId) -> Option<&Planned> {
        let position = self.positions.get(node.index()).copied().flatten()?;
        self.inodes.get(position as usize)
    }

    pub(crate) fn number(&self, node: NodeId) -> u32 {
        self.positions.get(node.index()).copied().flatten().map_or(0, number)
    }

    /// The highest number that is used.
    pub(crate) fn last_inode(&self) -> u32 {
        let others = u32::try_from(self.inodes.len()).expect("counted when it was made") - 1;
        FIRST_INODE - 1 + others
    }

    pub(crate) fn usage(&self) -> Vec<Usage> {
        let geometry = &self.geometry;
        let last = self.last_inode();
        let of_group = |group| {
            let (first, end) = (geometry.first_data(group), geometry.end(group));
            let used = last.saturating_sub(group * geometry.inodes_per_group).min(geometry.inodes_per_group);
            let free_blocks = end - self.next.clamp(first, end);
            Usage { free_blocks, free_inodes: geometry.inodes_per_group - used, directories: 0 }
        };
        let mut usage: Vec<_> = (0..geometry.groups).map(of_group).collect();
        for (position, planned) in (0..).zip(&self.inodes) {
            if self.tree.entries(planned.node).is_some() {
                usage[geometry.group_of(number(position)) as usize].directories += 1;
            }
        }
        usage
    }
}

/// The number of the inode at a position.
pub(crate) const fn number(position: u32) -> u32 {
    if position == 0 { ROOT_INODE } else { FIRST_INODE - 1 + position }
}

impl Planned {
    /// Blocks of every kind that are its own.
    pub(crate) fn blocks(&self) -> u64 {
        let data: u64 = self.extents.iter().map(|extent| u64::from(extent.len)).sum();
        data + self.extent_blocks.len() as u64 + u64::from(self.has_xattr_block)
    }
}

/// Hands out blocks from the beginning of the disk to its end.
struct Allocator {
    geometry: Geometry,
    group: u32,
    next: u32,
}

impl Allocator {
    fn place(&mut self, planned: &mut Planned, ranges: &[(u32, u32)]) -> Option<()> {
        for (start, len) in ranges {
            let mut done = 0;
            while done < *len {
                let (physical, got) = self.run(*len - done)?;
                planned.extents.push(Extent { logical: start + done, physical, len: got });
                done += got;
            }
        }
        for _ in 0..extent::tree_blocks(planned.extents.len()) {
            planned.extent_blocks.push(self.run(1)?.0);
        }
        if planned.has_xattr_block {
            planned.xattr_block = self.run(1)?.0;
        }
        Some(())
    }

    /// At most so many blocks that lie together.
    fn run(&mut self, want: u32) -> Option<(u32, u32)> {
        if self.next == self.geometry.end(self.group) {
            if self.group + 1 == self.geometry.groups {
                return None;
            }
            self.group += 1;
            self.next = self.geometry.first_data(self.group);
        }
        let got = want.min(self.geometry.end(self.group) - self.next).min(extent::MAX_LEN);
        let start = self.next;
        self.next += got;
        Some((start, got))
    }
}

type Walked = (Vec<Planned>, Vec<Option<u32>>);

/// Everything that has a name, once, with how many it has.
fn walk(tree: &Tree) -> Result<Walked, PlanError> {
    let mut positions = vec![None; tree.len()];
    let mut inodes = vec![planned(tree, NodeId::ROOT, ROOT_INODE)?];
    positions[0] = Some(0);
    let mut waiting = VecDeque::from([0u32]);
    while let Some(position) = waiting.pop_front() {
        let dir = inodes[position as usize].node;
        for entry in tree.entries(dir).into_iter().flat_map(BTreeMap::values) {
            if let Some(known) = positions[entry.node.index()] {
                inodes[known as usize].links += 1;
                continue;
            }
            let new = u32::try_from(inodes.len()).map_err(|_| PlanError::TooLarge)?;
            positions[entry.node.index()] = Some(new);
            inodes.push(planned(tree, entry.node, number(position))?);
            if tree.entries(entry.node).is_some() {
                inodes[position as usize].links += 1;
                waiting.push_back(new);
            }
        }
    }
    for planned in &mut inodes {
        let is_directory = tree.entries(planned.node).is_some();
        if planned.links > MAX_LINKS {
            if !is_directory {
                return Err(PlanError::Links { path: tree.path(planned.node) });
            }
            planned.links = 1;
        }
    }
    Ok((inodes, positions))
}

fn planned(tree: &Tree, node: NodeId, parent: u32) -> Result<Planned, PlanError> {
    let stored = xattr::store(&tree.node(node).meta.xattrs);
    let stored = stored.map_err(|source| PlanError::Xattr { path: tree.path(node), source })?;
    let has_xattr_block = matches!(stored, Stored::InBlock(_));
    // A directory has its own `.` besides the name its parent has for it.
    let links = if tree.entries(node).is_some() { 2 } else { 1 };
    Ok(Planned { node, parent, links, extents: Vec::new(), extent_blocks: Vec::new(), has_xattr_block, xattr_block: 0 })
}

/// Which blocks of a node have to lie on the disk, as first and count, and how many those are.
fn ranges(tree: &Tree, node: NodeId) -> Result<(Vec<(u32, u32)>, u64), PlanError> {
    let ranges = match &tree.node(node).kind {
        Kind::Directory(entries) => {
            let names = [1, 2].into_iter().chain(entries.keys().map(|name| name.as_bytes().len()));
            vec![(0, directory::blocks(names))]
        }
        Kind::File(content) => file_ranges(content).ok_or_else(|| PlanError::File { path: tree.path(node) })?,
        Kind::Symlink(target) if target.len() >= SHORT_LINK => vec![(0, 1)],
        Kind::Symlink(_) | Kind::Device { .. } | Kind::Fifo | Kind::Socket => Vec::new(),
    };
    let count = ranges.iter().map(|(_, len)| u64::from(*len)).sum();
    Ok((ranges, count))
}

fn file_ranges(content: &Content) -> Option<Vec<(u32, u32)>> {
    if content.len > MAX_FILE || !content.is_sound() {
        return None;
    }
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for piece in content.pieces.iter().filter(|piece| piece.len > 0) {
        let first = u32::try_from(piece.at / BLOCK).ok()?;
        let end = u32::try_from((piece.at + piece.len).div_ceil(BLOCK)).ok()?;
        match ranges.last_mut() {
            Some((start, len)) if *start + *len >= first => *len = end - *start,
            _ => ranges.push((first, end - first)),
        }
    }
    Some(ranges)
}

/// Where a check puts what it finds; without it, it complains.
fn add_lost_and_found(tree: &mut Tree) {
    let name = Name::new(LOST_AND_FOUND).expect("`lost+found` is a name");
    if tree.get(NodeId::ROOT, &name).is_none() {
        let mtime = tree.node(NodeId::ROOT).meta.mtime;
        let meta = Meta { mode: 0o700, mtime, ..Meta::default() };
        let node = Node { meta, kind: Kind::Directory(BTreeMap::new()) };
        tree.insert(NodeId::ROOT, name, node, 0).expect("the root has no such name, and the tree was just walked");
    }
}
