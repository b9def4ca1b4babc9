//! Where a disk's bytes are.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::{Buffers, sys};

/// A disk's contents. Transfers may have any offset and length and wait until they are done; the caller keeps them
/// within [`Backend::len_bytes`].
pub trait Backend: Send + Debug {
    /// How large it is; never changes.
    fn len_bytes(&self) -> u64;

    /// Whether writing is refused.
    fn read_only(&self) -> bool;

    /// Fills the buffers.
    ///
    /// # Errors
    /// When the host cannot read, or the contents end before the buffers do.
    fn read_at(&mut self, to: Buffers<'_>, offset: u64) -> io::Result<()>;

    /// Writes out the buffers.
    ///
    /// # Errors
    /// When the host cannot write; what was there before may have been replaced in part.
    fn write_at(&mut self, from: Buffers<'_>, offset: u64) -> io::Result<()>;

    /// Makes what was written as lasting as the disk itself.
    ///
    /// # Errors
    /// When the host cannot.
    fn flush(&mut self) -> io::Result<()>;
}

/// A raw image that is only read; a clone is the same disk.
#[derive(Clone, Debug)]
pub struct RawDisk {
    image: Arc<File>,
    len: u64,
}

impl RawDisk {
    /// The contents of a file, or of a block device.
    ///
    /// # Errors
    /// When its size cannot be found.
    pub fn new(image: File) -> io::Result<Self> {
        let len = image_len(&image)?;
        Ok(Self { image: Arc::new(image), len })
    }

    /// The image.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.image
    }
}

impl Backend for RawDisk {
    fn len_bytes(&self) -> u64 {
        self.len
    }

    fn read_only(&self) -> bool {
        true
    }

    fn read_at(&mut self, to: Buffers<'_>, offset: u64) -> io::Result<()> {
        read_all(&self.image, to, offset)
    }

    fn write_at(&mut self, _from: Buffers<'_>, _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The size of a file or block device (whose metadata says 0).
pub(super) fn image_len(mut image: &File) -> io::Result<u64> {
    io::Seek::seek(&mut image, io::SeekFrom::End(0))
}

/// Fills all of `to` from a file.
pub(super) fn read_all(file: &File, mut to: Buffers<'_>, mut offset: u64) -> io::Result<()> {
    while !to.is_empty() {
        let count = sys::read_at(file.as_fd(), &to, offset)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.skip(count);
        offset += u64::try_from(count).expect("usize fits in u64");
    }
    Ok(())
}

/// Writes all of `from` to a file.
pub(super) fn write_all(file: &File, mut from: Buffers<'_>, mut offset: u64) -> io::Result<()> {
    while !from.is_empty() {
        let count = sys::write_at(file.as_fd(), &from, offset)?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        from.skip(count);
        offset += u64::try_from(count).expect("usize fits in u64");
    }
    Ok(())
}
