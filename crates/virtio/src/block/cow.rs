//! A disk with a private writable top.
//!
//! The top is a sparse file without a name, as large as the disk. A block enters it with its first write: what the
//! write leaves out is copied from below.
//!
//! ```text
//! owner  0 0 2 2 1 2 0        of seven blocks
//! top        [ ] [ ]          2: same offsets as on the disk
//! layer          [ ]          1
//! image  [           ]        0
//! ```
//!
//! Sealing makes the top one of the files below and puts another above it, without moving or looking at anything; so
//! it costs the same whatever is in it. The copy of a disk in a process made by `fork(2)` has the same files. It must
//! not write to a top that the other process goes on writing to, so one of the two takes a fresh one before either
//! writes: the one that runs on seals, the one that is to be a template only takes what was sealed. Both then have the
//! sealed file by a descriptor that can only be read, and so has everybody who is forked from them: who is taken over by
//! its guest cannot change what others have below their tops. That descriptor comes from outside, because a VMM opens
//! nothing.
//!
//! A [`CowDisk`] is a handle: the device has one and whoever wants to seal the disk another. Both are used on one
//! thread, between two requests, so the lock inside is never waited for.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use layer::Written;

use super::backend::{Backend, read_all, write_all};
use super::blocks::{BLOCK, BLOCK_BYTES, Span};
use super::layers::Layers;
use super::quota::Quota;
use crate::Buffers;

/// A copy-on-write disk; a clone is the same disk. What is below the top is never written; the top is gone when the
/// last clone is.
#[derive(Clone, Debug)]
pub struct CowDisk {
    len: u64,
    disk: Arc<Mutex<Option<Disk>>>,
}

#[derive(Debug)]
struct Disk {
    /// The last of the files is the top.
    layers: Layers,
    /// The top once more, open for reading only, once somebody has brought that.
    twin: Option<File>,
    /// Whether any block is in the top.
    written: bool,
    /// What all tops this disk ever has may take.
    quota: Option<Arc<Quota>>,
}

/// A place for what the guest writes next: an empty file, opened twice.
#[derive(Debug)]
pub struct Fresh {
    /// For reading and writing.
    pub written: File,
    /// For reading only: what is left of it when it is sealed in its turn.
    pub read: File,
}

/// A disk that can be sealed, whatever happens.
#[derive(Debug)]
#[must_use = "nothing is sealed yet"]
pub struct Prepared {
    disk: CowDisk,
    fresh: Fresh,
}

impl Prepared {
    /// Lets the present top never be written again and goes on in the fresh one. A top that has no block yet stays. The
    /// answer is the last descriptor here by which the sealed file can be written; closing it can wait.
    ///
    /// # Panics
    /// Never: the disk knows its top's twin since it was prepared.
    pub fn seal(self) -> Option<File> {
        let Self { disk, fresh } = self;
        let mut disk = disk.lock();
        let disk = disk.as_mut().filter(|disk| disk.written)?;
        let twin = disk.twin.replace(fresh.read).expect("it is there since the disk was prepared");
        let sealed = disk.layers.replace_top(twin);
        disk.layers.lay(fresh.written);
        disk.written = false;
        Some(sealed)
    }
}

impl CowDisk {
    /// Puts a top, an empty file, over layers. Reads nothing, however large and deep the disk is.
    ///
    /// # Errors
    /// When the file cannot be made as large as the disk, or there are as many layers as there can be.
    pub fn over(mut layers: Layers, top: File) -> io::Result<Self> {
        let len = layers.len_bytes();
        top.set_len(len)?;
        layers.raise(top)?;
        Ok(Self { len, disk: Arc::new(Mutex::new(Some(Disk { layers, twin: None, written: false, quota: None }))) })
    }

    /// Puts a top, a nameless file in `dir`, over an image without layers.
    ///
    /// # Errors
    /// When the image's size cannot be found or the top cannot be made.
    pub fn create(image: File, dir: &Path) -> io::Result<Self> {
        Self::over(Layers::open(image, Vec::new()).map_err(io::Error::other)?, tempfile::tempfile_in(dir)?)
    }

    /// Lets its tops take no more than is left of the quota. What is sealed stays counted: the host keeps it.
    pub fn limit(&self, quota: Arc<Quota>) {
        if let Some(disk) = self.lock().as_mut() {
            disk.quota = Some(quota);
        }
    }

    /// The present top, for who opens it once more for [`CowDisk::prepare`].
    ///
    /// # Errors
    /// When the host has no descriptors left, or the disk was taken away.
    pub fn top(&self) -> io::Result<File> {
        let disk = self.lock();
        let disk = disk.as_ref().ok_or_else(taken)?;
        disk.layers.file(disk.top())?.try_clone()
    }

    /// Makes sure that the disk can be sealed: with a fresh top, and with the present one open for reading only, which is
    /// not needed by a disk that was sealed before.
    ///
    /// # Errors
    /// When the fresh one cannot be made as large as the disk, a file is not the one it should be, there are as many
    /// layers as there can be, or the disk was taken away.
    pub fn prepare(&self, fresh: Fresh, present: File) -> io::Result<Prepared> {
        fresh.written.set_len(self.len)?;
        same(&fresh.written, &fresh.read)?;
        let mut disk = self.lock();
        let disk = disk.as_mut().ok_or_else(taken)?;
        disk.layers.has_room()?;
        if disk.twin.is_none() {
            same(disk.layers.file(disk.top())?, &present)?;
            disk.twin = Some(present);
        }
        Ok(Prepared { disk: self.clone(), fresh })
    }

    /// Takes the disk away from all handles, its top sealed; nothing if that was done before.
    ///
    /// Whoever did this in the child of a `fork(2)` has what the disk was at that moment, if its parent seals before it
    /// writes.
    #[must_use]
    pub fn take_sealed(&self) -> Option<Layers> {
        let Disk { mut layers, twin, written, .. } = self.lock().take()?;
        match twin {
            _ if !written => layers.pop(),
            Some(twin) => drop(layers.replace_top(twin)),
            // It was never prepared, and so nobody else has it.
            None => {}
        }
        Some(layers)
    }

    /// Writes what was written since the disk was made into an empty file, as a layer above what it was made over. The
    /// disk itself stays as it is. The file is not synced.
    ///
    /// # Errors
    /// When the file is not empty, the host cannot read or write, or the disk was taken away; what is in the file then
    /// is no layer.
    pub fn write_layer(&self, to: &File) -> io::Result<Written> {
        let disk = self.lock();
        let Disk { layers, .. } = disk.as_ref().ok_or_else(taken)?;
        layers.write_layer(layers.floor(), to)
    }

    /// Whoever panicked with the lock left a good disk behind: blocks are claimed for the top only once they are in it.
    fn lock(&self) -> MutexGuard<'_, Option<Disk>> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn span(&self, offset: u64, len: usize) -> io::Result<Span> {
        let span = Span::new(offset, len)?;
        if span.end() <= self.len { Ok(span) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

/// Two descriptors are of one file, or of what would be another disk.
fn same(one: &File, other: &File) -> io::Result<()> {
    let id = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
    if id(one)? == id(other)? {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "what came to be read is not the file that is written"))
}

fn taken() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the disk was taken away")
}

impl Disk {
    /// The number of the top.
    fn top(&self) -> u16 {
        self.layers.files() - 1
    }

    /// Brings the rest of a partly overwritten block into the top. It belongs to the top only when the write is done.
    fn copy_up(&self, block: u64) -> io::Result<()> {
        let (mut bytes, start) = ([0; BLOCK], block * BLOCK_BYTES);
        // The last block of a disk may be a short one.
        let count = usize::try_from((self.layers.len_bytes() - start).min(BLOCK_BYTES)).expect("at most a block");
        read_all(self.layers.file(self.layers.owner(block))?, Buffers::from(&mut bytes[..count]), start)?;
        write_all(self.layers.file(self.top())?, Buffers::from(&mut bytes[..count]), start)
    }

    /// Writes if there is room for the blocks that are not in the top yet.
    fn write(&mut self, from: Buffers<'_>, span: Span) -> io::Result<()> {
        let top = self.top();
        let new = self.layers.runs(span.blocks()).filter(|(_, owner)| *owner != top);
        let new: u64 = new.map(|(run, _)| (run.end - run.start) * BLOCK_BYTES).sum();
        let quota = self.quota.clone();
        if quota.as_ref().is_some_and(|quota| !quota.take(new)) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let written = self.write_up(from, span);
        if let (Err(_), Some(quota)) = (&written, quota) {
            quota.put_back(new);
        }
        written
    }

    fn write_up(&mut self, from: Buffers<'_>, span: Span) -> io::Result<()> {
        let (blocks, top) = (span.blocks(), self.top());
        let (first, last) = (blocks.start, blocks.end - 1);
        let edges = [Some(first), (last != first).then_some(last)];
        for block in edges.into_iter().flatten() {
            if !span.covers(block, self.layers.len_bytes()) && self.layers.owner(block) != top {
                self.copy_up(block)?;
            }
        }
        write_all(self.layers.file(top)?, from, span.offset)?;
        self.layers.claim(blocks, top);
        self.written = true;
        Ok(())
    }
}

impl Backend for CowDisk {
    fn len_bytes(&self) -> u64 {
        self.len
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&mut self, mut to: Buffers<'_>, offset: u64) -> io::Result<()> {
        let (span, disk) = (self.span(offset, to.len())?, self.lock());
        let Disk { layers, .. } = disk.as_ref().ok_or_else(taken)?;
        for (run, owner) in layers.runs(span.blocks()) {
            let part = span.within(&run);
            read_all(layers.file(owner)?, to.take(part.len), part.offset)?;
        }
        Ok(())
    }

    /// Blocks count as being in the top only once all of them are: a write that fails half way leaves what is below
    /// visible in blocks that were not there before.
    fn write_at(&mut self, from: Buffers<'_>, offset: u64) -> io::Result<()> {
        let (span, mut disk) = (self.span(offset, from.len())?, self.lock());
        let disk = disk.as_mut().ok_or_else(taken)?;
        if span.len == 0 { Ok(()) } else { disk.write(from, span) }
    }

    /// The top ends with the VM and with the host, so there is nothing that could outlast either.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
