//! Waiting for descriptors, with an end.

use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::writer::MARK;

/// By when something must have happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// Waits until one of these can be read or has ended; says which.
    pub(super) fn wait(self, what: &str, fds: &[BorrowedFd<'_>]) -> Result<Vec<bool>> {
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let left = self.0.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).context("a wait of that length")?;
        let ready = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&left)))?;
        if ready == 0 {
            bail!("{what} did not happen in time");
        }
        Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect())
    }
}

/// Makes a pipe with a name, for a guest's console: what the guest says can then be waited for. Open at both ends, so
/// whoever opens it next to write need not wait.
pub(super) fn named_pipe(path: &Path) -> Result<File> {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    Ok(File::options().read(true).write(true).open(path)?)
}

/// Takes what is in the pipe, which must be bytes of this kind only; how many there were. One that was telling something
/// when it was forked ends that first, with a byte that does not count.
pub(super) fn count_of(byte: u8, mut pipe: &File) -> Result<usize> {
    let mut bytes = [0; 4096];
    let count = pipe.read(&mut bytes)?;
    let mut words = bytes[..count].iter().filter(|found| **found & MARK == 0);
    let strange = words.clone().find(|found| **found != byte);
    ensure!(strange.is_none(), "a guest said {strange:?} where it should say {byte}");
    Ok(words.by_ref().count())
}
