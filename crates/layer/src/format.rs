//! The bytes of a layer's table and footer; see the crate's page for where they are.

use std::ops::Range;

use crate::blocks::{self, BLOCK, BLOCK_BYTES, BlockSet, REGION_BLOCKS};
use crate::layer::{Kind, LayerError};

/// The largest disk or memory; bounds the table to 448 MiB.
pub const MAX_LENGTH: u64 = 4 << 40;
pub(crate) const VERSION: u32 = 2;
pub(crate) const BLOCK_SIZE: u32 = 4096;
pub(crate) const ENTRY_LEN: usize = 112;
pub(crate) const FOOTER_LEN: usize = 64;
pub(crate) const ENTRY_BYTES: u64 = ENTRY_LEN as u64;
pub(crate) const FOOTER_BYTES: u64 = FOOTER_LEN as u64;
const MAGIC: [u8; 8] = *b"FKDLAYER";

const _: () = assert!(BLOCK_SIZE as usize == BLOCK);

/// Where the table begins.
pub(crate) const fn table_at(length: u64) -> u64 {
    blocks::count(length) * BLOCK_BYTES
}

/// What a layer has of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) region: u64,
    pub(crate) has: BlockSet,
    pub(crate) zero: BlockSet,
    pub(crate) quick: u64,
    pub(crate) digest: [u8; 32],
}

impl Entry {
    /// The blocks whose bytes are in the file.
    pub(crate) fn data(&self) -> BlockSet {
        self.has - self.zero
    }

    /// Where in the whole they are, neighbours together.
    pub(crate) fn data_runs(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let first = self.first();
        self.data().runs().map(move |run| first + run.start..first + run.end)
    }

    /// All blocks, neighbours of a kind together, in ascending order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Range<u64>, Kind)> + use<> {
        let (first, zero) = (self.first(), self.zero);
        let mut data = self.data().runs().map(|run| (run, Kind::Data)).peekable();
        let mut zero = zero.runs().map(|run| (run, Kind::Zero)).peekable();
        std::iter::from_fn(move || {
            let zero_next = match (data.peek(), zero.peek()) {
                (Some((data, _)), Some((zero, _))) => zero.start < data.start,
                (data, _) => data.is_none(),
            };
            let (run, kind) = if zero_next { zero.next() } else { data.next() }?;
            Some((first + run.start..first + run.end, kind))
        })
    }

    /// Its first block.
    pub(crate) const fn first(&self) -> u64 {
        self.region * REGION_BLOCKS
    }

    pub(crate) fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        let words = [self.region].into_iter().chain(self.has.0).chain(self.zero.0).chain([self.quick]);
        bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        bytes[ENTRY_LEN - 32..].copy_from_slice(&self.digest);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; ENTRY_LEN]) -> Self {
        let rest = &mut &bytes[..];
        let region = u64::from_le_bytes(cut(rest));
        let [has, zero] = [(); 2].map(|()| BlockSet([(); 4].map(|()| u64::from_le_bytes(cut(rest)))));
        Self { region, has, zero, quick: u64::from_le_bytes(cut(rest)), digest: cut(rest) }
    }
}

/// What the end of a layer says of the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) length: u64,
    pub(crate) entries: u64,
}

impl Footer {
    /// All of it but the digest.
    pub(crate) fn encode(&self) -> [u8; FOOTER_LEN - 32] {
        let mut bytes = [0; FOOTER_LEN - 32];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&BLOCK_SIZE.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..].copy_from_slice(&self.entries.to_le_bytes());
        bytes
    }

    /// Reads what a file of so many bytes ends with; says the digest too. What passes adds up to the file.
    pub(crate) fn decode(bytes: &[u8; FOOTER_LEN], file_len: u64) -> Result<(Self, [u8; 32]), LayerError> {
        let (footer, digest) = Self::parse(bytes)?;
        match footer.table_at() + footer.table_bytes() + FOOTER_BYTES {
            expected if expected == file_len => Ok((footer, digest)),
            expected => Err(LayerError::Length { found: file_len, expected }),
        }
    }

    /// Reads a footer wherever it was; says the digest too. What passes is of a layer that there can be.
    pub(crate) fn parse(bytes: &[u8; FOOTER_LEN]) -> Result<(Self, [u8; 32]), LayerError> {
        let rest = &mut &bytes[..];
        if cut::<8>(rest) != MAGIC {
            return Err(LayerError::Foreign);
        }
        match u32::from_le_bytes(cut(rest)) {
            VERSION => {}
            found => return Err(LayerError::Version { found }),
        }
        match u32::from_le_bytes(cut(rest)) {
            BLOCK_SIZE => {}
            found => return Err(LayerError::BlockSize { found }),
        }
        let footer = Self { length: u64::from_le_bytes(cut(rest)), entries: u64::from_le_bytes(cut(rest)) };
        if footer.length > MAX_LENGTH {
            return Err(LayerError::TooLarge { bytes: footer.length });
        }
        if footer.entries > blocks::count(footer.length).div_ceil(REGION_BLOCKS) {
            return Err(LayerError::Table { what: "it has more entries than there are regions" });
        }
        Ok((footer, cut(rest)))
    }

    /// Where the table begins.
    pub(crate) const fn table_at(&self) -> u64 {
        table_at(self.length)
    }

    /// How long the table is.
    pub(crate) const fn table_bytes(&self) -> u64 {
        self.entries * ENTRY_BYTES
    }
}

fn cut<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, after) = rest.split_first_chunk().expect("the fields add up to the length");
    *rest = after;
    *first
}
