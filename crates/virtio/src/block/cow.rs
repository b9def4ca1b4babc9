//! Immutable layers with a private writable top.
//!
//! The top is a sparse file without a name, as large as the disk; a map has one bit for each block of 4 KiB: whether
//! the block is in the top. A block is always wholly in one file, so a read asks per block and merges neighbours. A
//! block enters the top with its first write: what the write leaves out is copied from below.
//!
//! ```text
//! map    . . X X . X .        X: in the top
//! top        [   ] [ ]        same offsets as on the disk
//! layers [           ]
//! ```
//!
//! A [`CowDisk`] is a handle: the device has one and whoever wants to seal the disk another. Both are used on one
//! thread, between two requests, so the lock inside is never waited for.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::backend::{Backend, read_all, write_all};
use super::blocks::{BLOCK, BLOCK_BYTES, BlockMap, Span, runs};
use super::layer::{self, LayerStats};
use super::layers::Layers;
use crate::Buffers;

/// A copy-on-write disk; a clone is the same disk. What is below the top is never written; the top is gone when the
/// last clone is.
#[derive(Clone, Debug)]
pub struct CowDisk {
    layers: Arc<Layers>,
    top: Arc<Mutex<Top>>,
}

#[derive(Debug)]
struct Top {
    file: File,
    blocks: BlockMap,
}

impl CowDisk {
    /// Puts an empty top, a nameless file in `dir`, over layers. Makes the file and reads nothing, however large and
    /// deep the disk is.
    ///
    /// # Errors
    /// When the top cannot be made.
    pub fn over(layers: Arc<Layers>, dir: &Path) -> io::Result<Self> {
        let file = tempfile::tempfile_in(dir)?;
        file.set_len(layers.len_bytes())?;
        let blocks = BlockMap::new(layers.len_bytes())?;
        Ok(Self { layers, top: Arc::new(Mutex::new(Top { file, blocks })) })
    }

    /// Puts an empty top over an image without layers.
    ///
    /// # Errors
    /// When the image's size cannot be found or the top cannot be made.
    pub fn create(image: File, dir: &Path) -> io::Result<Self> {
        let layers = Layers::open(vec![image]).map_err(io::Error::other)?;
        Self::over(Arc::new(layers), dir)
    }

    /// What the top lies on.
    #[must_use]
    pub const fn layers(&self) -> &Arc<Layers> {
        &self.layers
    }

    /// Writes what the top has into an empty file as a layer, to be opened above [`CowDisk::layers`] with
    /// [`Layers::open`]. The disk itself stays as it is. The file is not synced.
    ///
    /// # Errors
    /// When the file is not empty or the host cannot write; what is in it then is no layer.
    pub fn write_layer(&self, to: &File) -> io::Result<LayerStats> {
        let top = self.top();
        layer::write(&top.file, &top.blocks, self.layers.len_bytes(), to)
    }

    /// Whoever panicked with the lock left a good top behind: blocks are in the map only once they are in the file.
    fn top(&self) -> MutexGuard<'_, Top> {
        self.top.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, span: Span) -> io::Result<()> {
        if span.end() <= self.layers.len_bytes() { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

impl Top {
    /// Brings the rest of a partly overwritten block into the top. Its bit stays clear until the write is done.
    fn copy_up(&self, layers: &Layers, block: u64) -> io::Result<()> {
        let mut bytes = [0; BLOCK];
        let start = block * BLOCK_BYTES;
        // The last block of a disk may be a short one.
        let count = usize::try_from((layers.len_bytes() - start).min(BLOCK_BYTES)).expect("at most a block");
        read_all(layers.file(layers.owner(block)), Buffers::from(&mut bytes[..count]), start)?;
        write_all(&self.file, Buffers::from(&mut bytes[..count]), start)
    }
}

impl Backend for CowDisk {
    fn len_bytes(&self) -> u64 {
        self.layers.len_bytes()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, mut to: Buffers<'_>, offset: u64) -> io::Result<()> {
        let (span, top) = (Span::new(offset, to.len())?, self.top());
        self.check(span)?;
        let below = |block| (!top.blocks.has(block)).then(|| self.layers.owner(block));
        for (run, owner) in runs(span.blocks(), below) {
            let part = span.within(&run);
            let file = owner.map_or(&top.file, |owner| self.layers.file(owner));
            read_all(file, to.take(part.len), part.offset)?;
        }
        Ok(())
    }

    /// Blocks count as being in the top only once all of them are: a write that fails half way leaves what is below
    /// visible in blocks that were not there before.
    fn write_at(&mut self, from: Buffers<'_>, offset: u64) -> io::Result<()> {
        let (span, mut top) = (Span::new(offset, from.len())?, self.top());
        self.check(span)?;
        if span.len == 0 {
            return Ok(());
        }
        let blocks = span.blocks();
        let (first, last) = (blocks.start, blocks.end - 1);
        let edges = [Some(first), (last != first).then_some(last)];
        for block in edges.into_iter().flatten() {
            if !span.covers(block, self.layers.len_bytes()) && !top.blocks.has(block) {
                top.copy_up(&self.layers, block)?;
            }
        }
        write_all(&top.file, from, offset)?;
        top.blocks.insert(blocks);
        Ok(())
    }

    /// The top ends with the VM and with the host, so there is nothing that could outlast either.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
