//! Access control lists, which ext4 stores in a shorter form than `getxattr` returns.
//!
//! ```text
//! getxattr   version 2, then per entry: tag, permissions, id         2 + 2 + 4 bytes
//! ext4       version 1, then per entry: tag, permissions, and the id only of named users and groups
//! ```

/// Not an access control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the access control list is malformed")]
pub struct AclError;

const VERSION: [u8; 4] = 2u32.to_le_bytes();
const STORED: [u8; 4] = 1u32.to_le_bytes();
const USER: u16 = 2;
const GROUP: u16 = 8;
/// The owner, a named user, the owning group, a named group, the mask, others.
const TAGS: [u16; 6] = [1, USER, 4, GROUP, 16, 32];

/// In the form ext4 stores.
pub(crate) fn stored(value: &[u8]) -> Result<Vec<u8>, AclError> {
    let entries = value.strip_prefix(&VERSION).filter(|entries| entries.len().is_multiple_of(8)).ok_or(AclError)?;
    let mut bytes = STORED.to_vec();
    for entry in entries.chunks_exact(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        if !TAGS.contains(&tag) {
            return Err(AclError);
        }
        bytes.extend(&entry[..if matches!(tag, USER | GROUP) { 8 } else { 4 }]);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_ones_keep_their_ids() {
        let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &6u16.to_le_bytes(), &id.to_le_bytes()].concat();
        let value = [VERSION.to_vec(), entry(1, u32::MAX), entry(USER, 1000), entry(32, u32::MAX)].concat();
        let expected = [&STORED[..], &entry(1, 0)[..4], &entry(USER, 1000), &entry(32, 0)[..4]].concat();
        assert_eq!(stored(&value).unwrap(), expected);
        for bad in [&b""[..], &value[..7], &STORED, &[&VERSION[..], &entry(3, 0)].concat()] {
            assert_eq!(stored(bad), Err(AclError));
        }
    }
}
