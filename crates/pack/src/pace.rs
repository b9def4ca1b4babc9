//! Bytes on their way: counted, summed up, shown, and called off.

use std::cell::Cell;
use std::io::{self, Read, Write};

use layer::Digest;
use sha2::Digest as _;
use types::progress::Stage;

use crate::manifest::Sha256;

/// How far something is that a person may watch and call off.
pub(crate) struct Pace<'a> {
    stage: Box<dyn Stage>,
    done: Cell<u64>,
    cancelled: &'a dyn Fn() -> bool,
}

impl<'a> Pace<'a> {
    pub(crate) fn new(stage: Box<dyn Stage>, cancelled: &'a dyn Fn() -> bool) -> Self {
        Self { stage, done: Cell::new(0), cancelled }
    }

    pub(crate) fn advance(&self, bytes: usize) -> io::Result<()> {
        if (self.cancelled)() {
            return Err(io::Error::other("it was called off"));
        }
        self.done.set(self.done.get().saturating_add(bytes as u64));
        self.stage.advance(self.done.get());
        Ok(())
    }
}

/// Sums up what passes.
pub(crate) struct Summed<'a, T> {
    inner: T,
    hasher: sha2::Sha256,
    bytes: u64,
    pace: &'a Pace<'a>,
}

impl<'a, T> Summed<'a, T> {
    pub(crate) fn new(inner: T, pace: &'a Pace<'a>) -> Self {
        Self { inner, hasher: sha2::Sha256::new(), bytes: 0, pace }
    }

    /// How much it was, and what it adds up to.
    pub(crate) fn finish(self) -> (u64, Sha256) {
        (self.bytes, Digest::new(self.hasher.finalize().into()))
    }

    fn passed(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        self.pace.advance(bytes.len())
    }
}

impl<W: Write> Write for Summed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.passed(&bytes[..count])?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for Summed<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(to)?;
        self.passed(&to[..count])?;
        Ok(count)
    }
}
