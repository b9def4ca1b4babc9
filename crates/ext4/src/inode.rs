//! The 256 bytes of an inode.

use crate::geometry::INODE_BYTES;
use crate::tree::{DeviceKind, Kind, Time};
use crate::xattr::INODE_ROOM;

/// Bytes used beyond the first 128; what follows is for attributes.
pub(crate) const EXTRA: u16 = 32;
const EXTENTS: u32 = 0x8_0000;
/// A directory with more subdirectories has 1, which means "unknown".
pub(crate) const MAX_LINKS: u32 = 65000;
/// Times are 34 bits that begin at the earliest 32-bit one.
const TIMES: std::ops::RangeInclusive<i64> = -(1 << 31)..=(1 << 34) - (1 << 31) - 1;

/// An inode's fields that are not zero.
#[derive(Debug)]
pub(crate) struct Inode<'a> {
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
    pub(crate) links: u16,
    pub(crate) size: u64,
    /// Of everything it owns.
    pub(crate) blocks: u64,
    /// Extents, a short link's target, or a device.
    pub(crate) body: [u8; 60],
    pub(crate) has_extents: bool,
    pub(crate) xattr_block: u32,
    /// Attributes that lie in the inode.
    pub(crate) xattrs: &'a [u8],
}

impl Inode<'_> {
    pub(crate) fn encode(&self) -> [u8; INODE_BYTES as usize] {
        let mut bytes = [0; INODE_BYTES as usize];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let (seconds, extra) = time(self.mtime);
        let sectors = (self.blocks * 8).to_le_bytes();
        let size = self.size.to_le_bytes();
        let (uid, gid) = (self.uid.to_le_bytes(), self.gid.to_le_bytes());
        put(0, &self.mode.to_le_bytes());
        put(2, &uid[..2]);
        put(4, &size[..4]);
        for at in [8, 12, 16] {
            put(at, &seconds);
        }
        put(24, &gid[..2]);
        put(26, &self.links.to_le_bytes());
        put(28, &sectors[..4]);
        put(32, &(if self.has_extents { EXTENTS } else { 0 }).to_le_bytes());
        put(40, &self.body);
        put(104, &self.xattr_block.to_le_bytes());
        put(108, &size[4..]);
        put(116, &sectors[4..6]);
        put(120, &uid[2..]);
        put(122, &gid[2..]);
        put(128, &EXTRA.to_le_bytes());
        for at in [132, 136, 140] {
            put(at, &extra);
        }
        put(144, &seconds);
        put(148, &extra);
        put(bytes_before_xattrs(), self.xattrs);
        bytes
    }
}

const fn bytes_before_xattrs() -> usize {
    INODE_BYTES as usize - INODE_ROOM
}

/// The old 32 bits, and the new ones: nanoseconds above two more bits of seconds.
fn time(time: Time) -> ([u8; 4], [u8; 4]) {
    let secs = time.secs.clamp(*TIMES.start(), *TIMES.end());
    let [a, b, c, d, ..] = secs.to_le_bytes();
    let low = [a, b, c, d];
    let beyond = (secs - i64::from(i32::from_le_bytes(low))) >> 32;
    let epoch = u32::try_from(beyond & 3).expect("two bits are a number");
    (low, (time.nanos.min(999_999_999) << 2 | epoch).to_le_bytes())
}

/// The kind in an inode's mode.
pub(crate) const fn format(kind: &Kind) -> u16 {
    match kind {
        Kind::Fifo => 0x1000,
        Kind::Device { kind: DeviceKind::Character, .. } => 0x2000,
        Kind::Directory(_) => 0x4000,
        Kind::Device { kind: DeviceKind::Block, .. } => 0x6000,
        Kind::File(_) => 0x8000,
        Kind::Symlink(_) => 0xa000,
        Kind::Socket => 0xc000,
    }
}

/// The kind in a directory's record.
pub(crate) const fn record_kind(kind: &Kind) -> u8 {
    match kind {
        Kind::File(_) => 1,
        Kind::Directory(_) => 2,
        Kind::Device { kind: DeviceKind::Character, .. } => 3,
        Kind::Device { kind: DeviceKind::Block, .. } => 4,
        Kind::Fifo => 5,
        Kind::Socket => 6,
        Kind::Symlink(_) => 7,
    }
}

/// A device in the first word if it is small, else in the second.
pub(crate) fn device(major: u32, minor: u32) -> [u8; 60] {
    let mut body = [0; 60];
    if major < 256 && minor < 256 {
        body[..4].copy_from_slice(&(major << 8 | minor).to_le_bytes());
    } else {
        let word = (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12;
        body[4..8].copy_from_slice(&word.to_le_bytes());
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_34_bits() {
        let encoded = |secs| time(Time { secs, nanos: 0 });
        assert_eq!(encoded(0), ([0; 4], [0; 4]));
        assert_eq!(encoded(-1), ([0xff; 4], [0; 4]));
        assert_eq!(encoded(1 << 31), ([0, 0, 0, 0x80], [1, 0, 0, 0]));
        assert_eq!(encoded(1 << 32), ([0; 4], [1, 0, 0, 0]));
        assert_eq!(encoded(i64::MAX), ([0xff, 0xff, 0xff, 0x7f], [3, 0, 0, 0]));
        assert_eq!(encoded(i64::MIN), ([0, 0, 0, 0x80], [0; 4]));
    }
}
