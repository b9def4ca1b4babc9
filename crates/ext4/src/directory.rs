//! Directory blocks: records of inode, length, kind and name, the last one of a block reaching to its end.

use crate::BLOCK_LEN;

/// Inode, record's length, name's length, kind.
const HEADER: usize = 8;

/// What a record says besides the name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    pub(crate) inode: u32,
    pub(crate) kind: u8,
    pub(crate) name: &'a [u8],
}

/// How many blocks such names need; `.` and `..` must be among them.
pub(crate) fn blocks(name_lengths: impl Iterator<Item = usize>) -> u32 {
    let mut blocks = 1;
    let mut used = 0;
    for len in name_lengths {
        let record = record_len(len);
        if used + record > BLOCK_LEN {
            blocks += 1;
            used = 0;
        }
        used += record;
    }
    blocks
}

/// The blocks, one after the other.
pub(crate) fn encode<'a>(names: impl Iterator<Item = Named<'a>>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK_LEN);
    let mut last = 0;
    for named in names {
        let record = record_len(named.name.len());
        let room = bytes.len().next_multiple_of(BLOCK_LEN) - bytes.len();
        if !bytes.is_empty() && record > room {
            stretch(&mut bytes, last);
        }
        last = bytes.len();
        bytes.extend(named.inode.to_le_bytes());
        bytes.extend(u16::try_from(record).expect("a name has at most 255 bytes").to_le_bytes());
        bytes.push(u8::try_from(named.name.len()).expect("a name has at most 255 bytes"));
        bytes.push(named.kind);
        bytes.extend(named.name);
        bytes.resize(last + record, 0);
    }
    stretch(&mut bytes, last);
    bytes
}

/// Fills the block, and lets the record that begins at `last` reach to its end.
fn stretch(bytes: &mut Vec<u8>, last: usize) {
    let end = bytes.len().next_multiple_of(BLOCK_LEN);
    bytes.resize(end, 0);
    let len = u16::try_from(end - last).expect("a record lies in one block");
    bytes[last + 4..last + 6].copy_from_slice(&len.to_le_bytes());
}

const fn record_len(name: usize) -> usize {
    (HEADER + name).next_multiple_of(4)
}
