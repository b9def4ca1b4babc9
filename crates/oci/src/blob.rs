//! Bytes in a file, or in a part of one.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::digest::Digest;
use crate::tar::Stream;

/// A part of a file; reading one does not disturb the others.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    file: Arc<File>,
    at: u64,
    len: u64,
}

impl Blob {
    /// All of a file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // A pipe would have us wait for who writes to it, before it is known to be one.
        Self::new(File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?)
    }

    pub(crate) fn new(file: File) -> io::Result<Self> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Self { file: Arc::new(file), at: 0, len: meta.len() })
    }

    /// A part of this one; nothing when it does not lie in it.
    pub(crate) fn part(&self, at: u64, len: u64) -> Option<Self> {
        let end = at.checked_add(len).filter(|end| *end <= self.len)?;
        Some(Self { file: Arc::clone(&self.file), at: self.at + at, len: end - at })
    }

    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// From the beginning.
    pub(crate) fn reader(&self) -> Section {
        Section { blob: self.clone(), done: 0 }
    }

    /// All of it, if it is not longer.
    pub(crate) fn text(&self, max: u64) -> io::Result<Option<Vec<u8>>> {
        if self.len > max {
            return Ok(None);
        }
        let mut text = Vec::new();
        self.reader().read_to_end(&mut text)?;
        Ok(Some(text))
    }

    /// What it is called by its contents, in the way `like` is.
    pub(crate) fn digest(&self, like: &Digest) -> io::Result<Digest> {
        let mut hasher = like.hasher();
        hasher.read(&mut self.reader())?;
        Ok(hasher.finish())
    }
}

/// A blob that is being read.
#[derive(Debug)]
pub(crate) struct Section {
    blob: Blob,
    done: u64,
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.blob.len - self.done).unwrap_or(usize::MAX);
        let len = left.min(buffer.len());
        let read = self.blob.file.read_at(&mut buffer[..len], self.blob.at + self.done)?;
        self.done += read as u64;
        Ok(read)
    }
}

impl Stream for Section {
    fn pass(&mut self, len: u64) -> io::Result<u64> {
        let passed = len.min(self.blob.len - self.done);
        self.done += passed;
        Ok(passed)
    }
}
