//! Writing to our own standard streams, unbuffered and binary safe.

use std::io::{self, Write};
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use serde::Serialize;

/// For whom a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Words.
    Text,
    /// JSON, for a program.
    Json,
}

impl Shown {
    /// As the flag `--json` says.
    pub(crate) const fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }

    /// Writes a result as a line of either.
    pub(crate) fn line(self, value: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        line(&match self {
            Self::Json => serde_json::to_string(value)?,
            Self::Text => text(),
        })
    }
}

/// A reader that has seen enough, as `head` has.
pub(crate) fn reader_left(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Writes a line of a result; a reader that has left is no error.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    match writeln!(Raw(rustix::stdio::stdout()), "{text}") {
        Err(error) if !reader_left(&error) => Err(anyhow::Error::new(error).context("cannot write to standard output")),
        _ => Ok(()),
    }
}

/// A stream without the line buffer of the standard library, which would look for newlines in binary data.
#[derive(Debug)]
pub(crate) struct Raw(pub(crate) BorrowedFd<'static>);

impl Write for Raw {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::io::write(self.0, bytes) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                // Whoever shares the stream with us may have made it non-blocking.
                Err(Errno::AGAIN) => {
                    let mut fds = [PollFd::new(&self.0, PollFlags::OUT)];
                    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
