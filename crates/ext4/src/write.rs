//! A plan becomes bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::directory::{self, Named};
use crate::extent::{self, Extent};
use crate::geometry::GROUP_BLOCKS;
use crate::inode::{self, Inode};
use crate::plan::{Plan, Planned, SHORT_LINK, number};
use crate::superblock::{self, Usage};
use crate::tree::{Kind, NodeId};
use crate::xattr::{self, Stored};
use crate::{BLOCK, BLOCK_LEN};

impl Plan {
    /// Writes all but the contents of files. What was in `out` is lost.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, out: &File) -> io::Result<()> {
        out.set_len(0)?;
        out.set_len(self.bytes())?;
        let usage = self.usage();
        self.write_supers(out, &usage)?;
        for group in 0..self.geometry.groups {
            self.write_bitmaps(out, group)?;
        }
        for (position, planned) in (0..).zip(&self.inodes) {
            self.write_inode(out, number(position), planned)?;
        }
        Ok(())
    }

    /// Writes bytes of a file, which must be in its pieces. Zeros are there already, and are not written.
    ///
    /// # Errors
    /// When they are not, or the disk's file cannot be written.
    pub fn write_content(&self, out: &File, node: NodeId, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
        let planned = self.planned(node).ok_or(io::ErrorKind::NotFound)?;
        while !bytes.is_empty() {
            let (disk, len) = locate(&planned.extents, at).ok_or(io::ErrorKind::InvalidInput)?;
            let take = bytes.len().min(usize::try_from(len).unwrap_or(usize::MAX));
            write_what_is_not_zero(out, &bytes[..take], disk)?;
            bytes = &bytes[take..];
            at += take as u64;
        }
        Ok(())
    }

    fn write_supers(&self, out: &File, usage: &[Usage]) -> io::Result<()> {
        let descriptors = superblock::descriptors(&self.geometry, usage);
        for group in (0..self.geometry.groups).filter(|group| self.geometry.has_super(*group)) {
            let start = u64::from(self.geometry.start(group)) * BLOCK;
            let encoded = superblock::encode(&self.geometry, usage, &self.identity, group);
            out.write_all_at(&encoded, start + if group == 0 { superblock::OFFSET } else { 0 })?;
            out.write_all_at(&descriptors, start + BLOCK)?;
        }
        Ok(())
    }

    /// What is not there, beyond the disk's or the table's end, counts as used.
    fn write_bitmaps(&self, out: &File, group: u32) -> io::Result<()> {
        let geometry = &self.geometry;
        let (start, end) = (geometry.start(group), geometry.end(group));
        let used = self.next.clamp(geometry.first_data(group), end) - start;
        out.write_all_at(&bitmap(used, end - start), u64::from(geometry.block_bitmap(group)) * BLOCK)?;
        let per_group = geometry.inodes_per_group;
        let used = self.last_inode().saturating_sub(group * per_group).min(per_group);
        out.write_all_at(&bitmap(used, per_group), u64::from(geometry.inode_bitmap(group)) * BLOCK)
    }

    fn write_inode(&self, out: &File, number: u32, planned: &Planned) -> io::Result<()> {
        let node = self.tree.node(planned.node);
        let mut data = Vec::new();
        let (mut size, mut body, mut has_extents) = (0, [0; 60], true);
        match &node.kind {
            Kind::Directory(_) => {
                data = self.directory(number, planned);
                size = data.len() as u64;
            }
            Kind::File(content) => size = content.len,
            Kind::Symlink(target) => {
                size = target.len() as u64;
                if target.len() < SHORT_LINK {
                    body[..target.len()].copy_from_slice(target);
                    has_extents = false;
                } else {
                    data.extend(target);
                }
            }
            Kind::Device { major, minor, .. } => {
                body = inode::device(*major, *minor);
                has_extents = false;
            }
            Kind::Fifo | Kind::Socket => has_extents = false,
        }
        if has_extents {
            let (root, blocks) = extent::tree(&planned.extents, &planned.extent_blocks);
            body = root;
            for block in blocks {
                out.write_all_at(&block.bytes, u64::from(block.at) * BLOCK)?;
            }
        }
        self.write_content(out, planned.node, 0, &data)?;
        // They could be stored when this was planned.
        let stored = xattr::store(&node.meta.xattrs).map_err(io::Error::other)?;
        let xattrs = match &stored {
            Stored::Nowhere => &[][..],
            Stored::InInode(bytes) => bytes,
            Stored::InBlock(bytes) => {
                out.write_all_at(bytes, u64::from(planned.xattr_block) * BLOCK)?;
                &[]
            }
        };
        let encoded = Inode {
            mode: inode::format(&node.kind) | node.meta.mode & 0o7777,
            uid: node.meta.uid,
            gid: node.meta.gid,
            mtime: node.meta.mtime,
            links: u16::try_from(planned.links).expect("at most 65000"),
            size,
            blocks: planned.blocks(),
            body,
            has_extents,
            xattr_block: planned.xattr_block,
            xattrs,
        };
        out.write_all_at(&encoded.encode(), self.geometry.inode_at(number))
    }

    fn directory(&self, own: u32, planned: &Planned) -> Vec<u8> {
        let directory = inode::record_kind(&self.tree.node(planned.node).kind);
        let dots = [(own, &b"."[..]), (planned.parent, b"..")];
        let dots = dots.map(|(inode, name)| Named { inode, kind: directory, name });
        let entries = self.tree.entries(planned.node).into_iter().flatten().map(|(name, entry)| Named {
            inode: self.number(entry.node),
            kind: inode::record_kind(&self.tree.node(entry.node).kind),
            name: name.as_bytes(),
        });
        directory::encode(dots.into_iter().chain(entries))
    }
}

/// Where on the disk a byte of a file lies, and how many follow it there.
fn locate(extents: &[Extent], at: u64) -> Option<(u64, u64)> {
    let block = u32::try_from(at / BLOCK).ok()?;
    let after = extents.partition_point(|extent| extent.logical <= block);
    let extent = extents.get(after.checked_sub(1)?)?;
    let (start, len) = (u64::from(extent.logical) * BLOCK, u64::from(extent.len) * BLOCK);
    let within = at - start;
    (within < len).then(|| (u64::from(extent.physical) * BLOCK + within, len - within))
}

fn write_what_is_not_zero(out: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut start = 0;
    while start < bytes.len() {
        let is_zero = |chunk: &[u8]| chunk.iter().all(|byte| *byte == 0);
        let rest = &bytes[start..];
        let skipped: usize = rest.chunks(BLOCK_LEN).take_while(|chunk| is_zero(chunk)).map(<[u8]>::len).sum();
        let taken =
            rest[skipped..].chunks(BLOCK_LEN).take_while(|chunk| !is_zero(chunk)).map(<[u8]>::len).sum::<usize>();
        out.write_all_at(&rest[skipped..skipped + taken], at + (start + skipped) as u64)?;
        start += skipped + taken;
    }
    Ok(())
}

/// A block of bits: the first ones, and those from `end` on, are set.
fn bitmap(used: u32, end: u32) -> [u8; BLOCK_LEN] {
    let mut bits = [0; BLOCK_LEN];
    for (byte, first) in bits.iter_mut().zip((0..GROUP_BLOCKS).step_by(8)) {
        *byte = match (first + 8 <= used || first >= end, first >= used && first + 8 <= end) {
            (true, _) => 0xff,
            (false, true) => 0,
            (false, false) => {
                let set = |bit: &u32| first + bit < used || first + bit >= end;
                (0..8).filter(set).fold(0, |byte, bit| byte | 1 << bit)
            }
        };
    }
    bits
}
