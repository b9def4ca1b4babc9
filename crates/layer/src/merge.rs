//! Several layers made into one.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;

use xxhash_rust::xxh3::xxh3_64;

use crate::blocks::{BLOCK, BLOCK_BYTES, BlockSet, REGION, bytes_of, len_of};
use crate::format::Entry;
use crate::layer::{Kind, Layer, LayerError};
use crate::writer::{Writer, Written};

/// What the merged layer will lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottom {
    /// Something that may have other contents: a block that became zero is kept as such.
    Inherit,
    /// Nothing: what is not there is zero, so blocks of zeroes are left out.
    Zero,
}

/// Why layers could not be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// Nothing to merge.
    #[error("there are no layers to merge")]
    Nothing,
    /// A layer of something else, or one that is damaged. They are counted from 1.
    #[error("layer {index} cannot be merged: {source}")]
    Layer {
        /// Which.
        index: usize,
        /// What is wrong with it.
        source: LayerError,
    },
    /// The new layer.
    #[error("the merged layer cannot be written: {source}")]
    Write {
        /// What the system says.
        #[from]
        source: io::Error,
    },
}

/// A layer's part of a region.
struct Part<'l> {
    index: usize,
    layer: &'l Layer,
    entry: &'l Entry,
    /// The blocks that no higher layer has.
    visible: BlockSet,
}

/// Writes one layer into an empty file that is to what lies below as all the given ones, lowest first. Damage is not
/// merged: what is copied together is checked quickly, and what is copied as it is keeps its digest.
///
/// # Errors
/// When there are no layers, they are not all of the same length, one is damaged, or the host cannot write.
pub fn merge(layers: &[Layer], bottom: Bottom, to: &File) -> Result<Written, MergeError> {
    let length = layers.first().ok_or(MergeError::Nothing)?.len_bytes();
    for (index, layer) in (1..).zip(layers) {
        if layer.len_bytes() != length {
            let source = LayerError::Whole { found: layer.len_bytes(), expected: length };
            return Err(MergeError::Layer { index, source });
        }
    }
    let mut writer = Writer::create(to, length)?;
    let mut scratch = Scratch { whole: vec![0; REGION], part: vec![0; REGION] };
    let mut entries: Vec<_> = layers.iter().map(|layer| layer.entries().iter().peekable()).collect();
    while let Some(region) = entries.iter_mut().filter_map(|entries| Some(entries.peek()?.region)).min() {
        let mut parts = Vec::new();
        for (index, (layer, entries)) in (1..).zip(layers.iter().zip(&mut entries)) {
            let entry = entries.next_if(|entry| entry.region == region);
            parts.extend(entry.map(|entry| Part { index, layer, entry, visible: entry.has }));
        }
        hide(&mut parts);
        match &parts[..] {
            [only] => adopt(only, bottom, &mut writer)?,
            parts => scratch.combine(parts, bottom, &mut writer)?,
        }
    }
    Ok(writer.finish()?)
}

/// Drops what a higher layer has too.
fn hide(parts: &mut Vec<Part<'_>>) {
    let mut seen = BlockSet::default();
    for part in parts.iter_mut().rev() {
        part.visible = part.entry.has - seen;
        seen = seen | part.entry.has;
    }
    parts.retain(|part| !part.visible.is_empty());
}

/// Takes over a region of which one layer has all that can be seen.
fn adopt(part: &Part<'_>, bottom: Bottom, writer: &mut Writer<'_>) -> io::Result<()> {
    let entry = match bottom {
        Bottom::Inherit => *part.entry,
        Bottom::Zero => Entry { has: part.entry.data(), zero: BlockSet::default(), ..*part.entry },
    };
    if entry.has.is_empty() { Ok(()) } else { writer.adopt(part.layer, &entry) }
}

/// Room for a region twice: as it will be, and as a layer has it.
struct Scratch {
    whole: Vec<u8>,
    part: Vec<u8>,
}

impl Scratch {
    fn combine(&mut self, parts: &[Part<'_>], bottom: Bottom, writer: &mut Writer<'_>) -> Result<(), MergeError> {
        let (mut has, mut zero) = (BlockSet::default(), BlockSet::default());
        for part in parts {
            self.load(part).map_err(|source| MergeError::Layer { index: part.index, source })?;
            has = has | part.visible;
            zero = zero | (part.visible & part.entry.zero);
        }
        let Some(Part { layer, entry, .. }) = parts.first() else { return Ok(()) };
        let combined = Entry { has, zero, ..**entry };
        for (run, kind) in combined.runs() {
            let bytes = bytes_of(&run, layer.len_bytes());
            match (kind, bottom) {
                (Kind::Data, _) => {
                    let start = place(run.start - entry.first());
                    writer.put(run.start, &self.whole[start..start + len_of(&bytes)])?;
                }
                (Kind::Zero, Bottom::Inherit) => writer.zero(run.start, run.end - run.start)?,
                (Kind::Zero, Bottom::Zero) => {}
            }
        }
        Ok(())
    }

    /// Brings the visible blocks of a part to their places.
    fn load(&mut self, part: &Part<'_>) -> Result<(), LayerError> {
        let Part { layer, entry, visible, .. } = part;
        let mut bytes = layer.read_region(entry, &mut self.part)?;
        if xxh3_64(bytes) != entry.quick {
            return Err(LayerError::Contents { offset: entry.first() * BLOCK_BYTES });
        }
        for block in entry.data().runs().flatten() {
            let (here, rest) = bytes.split_at(BLOCK.min(bytes.len()));
            if visible.contains(block) {
                let start = place(block);
                self.whole[start..start + here.len()].copy_from_slice(here);
            }
            bytes = rest;
        }
        Ok(())
    }
}

/// Where a block of a region is in a buffer.
fn place(block: u64) -> usize {
    usize::try_from(block * BLOCK_BYTES).expect("within a region")
}
