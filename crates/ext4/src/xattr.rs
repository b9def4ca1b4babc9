//! Extended attributes: all of a file's in its inode if they fit there, else all in one block.
//!
//! ```text
//! inode   magic            entries ->      0       <- values      92 bytes after the magic
//! block   32-byte header   entries ->      0       <- values      sorted, with hashes
//! entry   name's length, prefix, value's offset, inode (0), value's length, hash, name, to a multiple of 4
//! ```

use std::collections::BTreeMap;

use crate::BLOCK_LEN;
use crate::acl::{self, AclError};

const MAGIC: [u8; 4] = 0xea02_0000u32.to_le_bytes();
const ENTRY: usize = 16;
const BLOCK_HEADER: usize = 32;
/// After the inode's fields and the magic.
pub(crate) const INODE_ROOM: usize = 96;
/// Names are stored without these; the longest that fits wins, as the kernel has it.
const PREFIXES: &[(&[u8], u8)] = &[(b"user.", 1), (b"trusted.", 4), (b"security.", 6), (b"system.", 7)];
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Attributes that ext4 cannot store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XattrError {
    /// Not of a known kind, or too long.
    #[error("ext4 has no attribute `{name}`")]
    Name {
        /// The attribute.
        name: String,
    },
    /// An access control list that is none.
    #[error("attribute `{name}`")]
    Acl {
        /// The attribute.
        name: String,
        /// Why.
        source: AclError,
    },
    /// More than fits into a block.
    #[error("the attributes take {bytes} bytes, and ext4 has room for {BLOCK_LEN} with their names")]
    TooLarge {
        /// How much they take.
        bytes: usize,
    },
}

/// Whether Linux has attributes that begin like this one.
#[must_use]
pub fn is_attribute(name: &[u8]) -> bool {
    PREFIXES.iter().any(|(prefix, _)| name.starts_with(prefix))
}

/// Where they go, and their bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Nowhere,
    InInode(Vec<u8>),
    InBlock(Vec<u8>),
}

struct Attribute<'a> {
    prefix: u8,
    name: &'a [u8],
    value: Vec<u8>,
}

impl Attribute<'_> {
    const fn entry_len(&self) -> usize {
        (ENTRY + self.name.len()).next_multiple_of(4)
    }

    const fn value_len(&self) -> usize {
        self.value.len().next_multiple_of(4)
    }

    /// As the kernel computes it over the name and the value's words.
    fn hash(&self) -> u32 {
        let name = self.name.iter().fold(0u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
        self.value.chunks(4).fold(name, |hash, chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }
}

pub(crate) fn store(xattrs: &BTreeMap<Box<[u8]>, Box<[u8]>>) -> Result<Stored, XattrError> {
    if xattrs.is_empty() {
        return Ok(Stored::Nowhere);
    }
    let attributes = xattrs.iter().map(|(name, value)| attribute(name, value));
    let mut attributes = attributes.collect::<Result<Vec<_>, _>>()?;
    attributes.sort_by(|a, b| (a.prefix, a.name.len(), a.name).cmp(&(b.prefix, b.name.len(), b.name)));
    // Four bytes of zero end the entries.
    let bytes = 4 + attributes.iter().map(|attribute| attribute.entry_len() + attribute.value_len()).sum::<usize>();
    if MAGIC.len() + bytes <= INODE_ROOM {
        // In an inode, offsets count from the first entry, and a hash of 0 means that there is none.
        let room = INODE_ROOM - MAGIC.len();
        Ok(Stored::InInode([&MAGIC[..], &place(&attributes, room, 0, |_| 0)].concat()))
    } else if BLOCK_HEADER + bytes <= BLOCK_LEN {
        let entries = place(&attributes, BLOCK_LEN - BLOCK_HEADER, BLOCK_HEADER, |attribute| attribute.hash());
        let hash = attributes.iter().fold(0u32, |hash, attribute| hash.rotate_left(16) ^ attribute.hash());
        let mut block = [MAGIC, 1u32.to_le_bytes(), 1u32.to_le_bytes(), hash.to_le_bytes()].concat();
        block.resize(BLOCK_HEADER, 0);
        Ok(Stored::InBlock([block, entries].concat()))
    } else {
        Err(XattrError::TooLarge { bytes })
    }
}

/// Entries from the front, values from the back; `base` is added to the values' offsets.
fn place(attributes: &[Attribute<'_>], room: usize, base: usize, hash: impl Fn(&Attribute<'_>) -> u32) -> Vec<u8> {
    let mut bytes = vec![0; room];
    let (mut front, mut back) = (0, room);
    let short = |n: usize| u16::try_from(n).expect("everything lies in one block").to_le_bytes();
    for attribute in attributes {
        back -= attribute.value_len();
        let offset = if attribute.value.is_empty() { 0 } else { base + back };
        let name_len = u8::try_from(attribute.name.len()).expect("names were checked");
        let value_len = u32::from(u16::from_le_bytes(short(attribute.value.len())));
        let entry = [
            &[name_len, attribute.prefix][..],
            &short(offset),
            &[0; 4],
            &value_len.to_le_bytes(),
            &hash(attribute).to_le_bytes(),
            attribute.name,
        ]
        .concat();
        bytes[front..front + entry.len()].copy_from_slice(&entry);
        bytes[back..back + attribute.value.len()].copy_from_slice(&attribute.value);
        front += attribute.entry_len();
    }
    bytes
}

fn attribute<'a>(full: &'a [u8], value: &[u8]) -> Result<Attribute<'a>, XattrError> {
    let shown = || full[..full.len().min(255)].escape_ascii().to_string();
    for (name, prefix) in [(ACL_ACCESS, 2), (ACL_DEFAULT, 3)] {
        if full == name {
            let value = acl::stored(value).map_err(|source| XattrError::Acl { name: shown(), source })?;
            return Ok(Attribute { prefix, name: b"", value });
        }
    }
    let known = PREFIXES.iter().find_map(|(prefix, index)| Some((full.strip_prefix(*prefix)?, *index)));
    let fits = known.filter(|(name, _)| (1..=255).contains(&name.len()) && !name.contains(&0));
    let (name, prefix) = fits.ok_or_else(|| XattrError::Name { name: shown() })?;
    if value.len() > BLOCK_LEN {
        return Err(XattrError::TooLarge { bytes: value.len() });
    }
    Ok(Attribute { prefix, name, value: value.into() })
}
