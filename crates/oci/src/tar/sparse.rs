//! Files with holes, in the three ways that GNU tar tells of them in PAX records.
//!
//! ```text
//! 0.0   GNU.sparse.offset, GNU.sparse.numbytes, again and again
//! 0.1   GNU.sparse.map = offset,length,offset,length...
//! 1.0   decimal lines before the contents: how many pieces, then offset and length of each
//! ```

use ext4::{Content, Piece};

use super::TarError;
use super::header::{BLOCK, Pair};
use super::pax::unsigned;

/// More pieces than any file that is worth storing; bounds what a map takes.
pub(super) const MAX_NUMBERS: usize = 1 << 17;
/// The digits of the largest number.
const MAX_DIGITS: usize = 20;

/// What the records say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PaxSparse {
    /// The member's name; what else it is called then is made up.
    pub(super) name: Option<Vec<u8>>,
    pub(super) map: Vec<Pair>,
    pub(super) map_is_in_contents: bool,
    real_size: u64,
    offset: Option<u64>,
}

impl PaxSparse {
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"name" => self.name = Some(value.into()),
            b"size" | b"realsize" => self.real_size = unsigned(value)?,
            b"major" => self.map_is_in_contents = unsigned(value)? == 1,
            b"offset" => self.offset = Some(unsigned(value)?),
            b"numbytes" => self.map.push((self.offset.take()?, unsigned(value)?)),
            b"map" => {
                let numbers = value.split(|byte| *byte == b',').map(unsigned).collect::<Option<Vec<_>>>()?;
                let (pairs, rest) = numbers.as_chunks();
                self.map =
                    if rest.is_empty() { pairs.iter().map(|[at, len]| (*at, *len)).collect() } else { return None };
            }
            _ => {}
        }
        Some(())
    }

    pub(super) fn content(&self, map: &[Pair]) -> Option<Content> {
        content(self.real_size, map)
    }
}

/// Nothing when the pieces are not of such a file, or out of order.
pub(super) fn content(len: u64, map: &[Pair]) -> Option<Content> {
    // The last piece may be empty: it only says where the file ends.
    let pieces = map.iter().filter(|(_, len)| *len > 0).map(|(at, len)| Piece { at: *at, len: *len }).collect();
    Some(Content { len, pieces }).filter(Content::is_sound)
}

/// The error of whoever reads, or one of the map.
pub(super) struct MapError(Option<TarError>);

impl MapError {
    pub(super) fn or(self, malformed: impl FnOnce() -> TarError) -> TarError {
        self.0.unwrap_or_else(malformed)
    }
}

/// Reads as many blocks as the map before the contents takes.
pub(super) fn read_map(mut next: impl FnMut(&mut [u8; BLOCK]) -> Result<(), TarError>) -> Result<Vec<Pair>, MapError> {
    let mut block = [0; BLOCK];
    let mut at = BLOCK;
    let mut number = || {
        let mut digits = Vec::with_capacity(MAX_DIGITS);
        loop {
            if at == BLOCK {
                next(&mut block).map_err(|error| MapError(Some(error)))?;
                at = 0;
            }
            let byte = block[at];
            at += 1;
            if byte == b'\n' {
                return unsigned(&digits).ok_or(MapError(None));
            }
            if digits.len() == MAX_DIGITS {
                return Err(MapError(None));
            }
            digits.push(byte);
        }
    };
    let count = usize::try_from(number()?).ok().filter(|count| *count <= MAX_NUMBERS).ok_or(MapError(None))?;
    let mut map = Vec::new();
    for _ in 0..count {
        map.push((number()?, number()?));
    }
    Ok(map)
}
