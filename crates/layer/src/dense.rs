//! A layer as a stream without holes, for the way to another host.
//!
//! ```text
//! footer | table | the bytes of all blocks that are not zero, in order
//! ```
//!
//! What will come is said first, so whoever reads it knows how much it is, that the table is the one of the layer that
//! was asked for, and of each region when it has come that it is what the table says. Nothing is believed.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use crate::blocks::{REGION, bytes_of, len_of};
use crate::check::{check_region, is_region};
use crate::digest::Digest;
use crate::format::{Entry, FOOTER_BYTES, FOOTER_LEN, Footer};
use crate::layer::{Layer, LayerError, LayerStats, read_table};
use crate::sparse::{expect_empty, file_len};
use crate::writer::Written;

/// Which layer shall come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its name.
    pub digest: Digest,
    /// How long the stream is.
    pub dense_bytes: u64,
    /// How large the disk or memory may be that it is a layer of.
    pub max_length: u64,
}

/// Why a layer did not come out or go in.
#[derive(Debug, thiserror::Error)]
pub enum DenseError {
    /// What is read is not the layer it should be.
    #[error("the layer cannot be used: {0}")]
    Layer(#[from] LayerError),
    /// The stream is of another layer.
    #[error("the stream holds layer {found}, and {expected} was expected")]
    Other {
        /// What it holds.
        found: Digest,
        /// What it should.
        expected: Digest,
    },
    /// The stream has another length than its own table calls for.
    #[error("the stream of the layer has {found} bytes, and its table calls for {expected}")]
    Length {
        /// How long it is.
        found: u64,
        /// How long it should be.
        expected: u64,
    },
    /// It ends too early, or cannot be read.
    #[error("the layer does not come whole: {source}")]
    Read {
        /// What the stream says.
        source: io::Error,
    },
    /// Where it goes takes no more.
    #[error("the layer cannot be written: {source}")]
    Write {
        /// What the system says.
        source: io::Error,
    },
}

/// How long the stream of a layer is.
#[must_use]
pub fn dense_len(layer: &Layer) -> u64 {
    layer.stats().file_bytes
}

/// Writes the stream of a layer. A layer that is damaged does not leave: what is read is checked.
///
/// # Errors
/// When the layer is damaged or cannot be read, or the stream takes no more.
pub fn export(layer: &Layer, to: &mut impl Write) -> Result<(), DenseError> {
    let mut put = |bytes: &[u8]| to.write_all(bytes).map_err(|source| DenseError::Write { source });
    let entries = u64::try_from(layer.entries().len()).expect("usize fits in u64");
    put(&Footer { length: layer.len_bytes(), entries }.encode())?;
    put(layer.digest().as_bytes())?;
    layer.entries().iter().try_for_each(|entry| put(&entry.encode()))?;
    let mut buffer = vec![0; REGION];
    for entry in layer.entries() {
        let bytes = layer.read_region(entry, &mut buffer).map_err(LayerError::from)?;
        check_region(entry, bytes, is_region)?;
        put(bytes)?;
    }
    Ok(())
}

/// Reads the stream of a layer and writes it into an empty file, as sparse as it was. Nothing is synced.
///
/// # Errors
/// When it is not the layer that was expected, to the last bit, or the host cannot write. What the file holds then is
/// not a layer.
pub fn import(from: &mut impl Read, expected: &Expected, to: &File) -> Result<Written, DenseError> {
    expect_empty(to).map_err(|source| DenseError::Write { source })?;
    let (footer, entries) = read_head(from, expected)?;
    let mut stats = LayerStats::empty();
    entries.iter().for_each(|entry| stats.add(entry, footer.length));
    if stats.file_bytes != expected.dense_bytes {
        return Err(DenseError::Length { found: expected.dense_bytes, expected: stats.file_bytes });
    }
    let mut buffer = vec![0; REGION];
    for entry in &entries {
        import_region(from, entry, footer.length, &mut buffer, to)?;
    }
    write_tail(&footer, expected.digest, &entries, to).map_err(|source| DenseError::Write { source })?;
    Ok(Written { digest: expected.digest, stats })
}

/// Reads what comes before the blocks. How many entries there are was checked against the stream's length before any
/// room was made for them.
fn read_head(from: &mut impl Read, expected: &Expected) -> Result<(Footer, Vec<Entry>), DenseError> {
    let mut footer = [0; FOOTER_LEN];
    from.read_exact(&mut footer).map_err(|source| DenseError::Read { source })?;
    let (footer, digest) = Footer::parse(&footer)?;
    let found = Digest::new(digest);
    if found != expected.digest {
        return Err(DenseError::Other { found, expected: expected.digest });
    }
    if footer.length > expected.max_length {
        return Err(LayerError::Whole { found: footer.length, expected: expected.max_length }.into());
    }
    let least = FOOTER_BYTES + footer.table_bytes();
    if expected.dense_bytes < least {
        return Err(DenseError::Length { found: expected.dense_bytes, expected: least });
    }
    let table = |bytes: &mut [u8]| from.read_exact(bytes);
    let entries = read_table(table, &footer, found).map_err(|error| match error {
        LayerError::Io { source } => DenseError::Read { source },
        error => error.into(),
    })?;
    Ok((footer, entries))
}

fn import_region(
    from: &mut impl Read,
    entry: &Entry,
    length: u64,
    buffer: &mut [u8],
    to: &File,
) -> Result<(), DenseError> {
    let len = entry.data_runs().map(|run| len_of(&bytes_of(&run, length))).sum();
    let bytes = &mut buffer[..len];
    from.read_exact(bytes).map_err(|source| DenseError::Read { source })?;
    check_region(entry, bytes, is_region)?;
    let mut rest = &bytes[..];
    for run in entry.data_runs() {
        let place = bytes_of(&run, length);
        let (piece, after) = rest.split_at(len_of(&place));
        to.write_all_at(piece, place.start).map_err(|source| DenseError::Write { source })?;
        rest = after;
    }
    Ok(())
}

/// Only with this it is a layer.
fn write_tail(footer: &Footer, digest: Digest, entries: &[Entry], to: &File) -> io::Result<()> {
    let mut tail: Vec<u8> = entries.iter().flat_map(Entry::encode).collect();
    tail.extend(footer.encode());
    tail.extend(digest.as_bytes());
    to.write_all_at(&tail, footer.table_at())?;
    // A file opened for appending takes no heed of places.
    match footer.table_at() + footer.table_bytes() + FOOTER_BYTES {
        expected if expected == file_len(to)? => Ok(()),
        _ => Err(io::Error::other("a layer's file did not keep what was written where it was written")),
    }
}
