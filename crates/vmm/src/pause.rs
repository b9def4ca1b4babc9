//! A VM that stands still until it is told to go on.
//!
//! Its vCPUs are parked, and the loop listens to nobody but those who give orders, so its devices stand still as well: what
//! the host has for them waits in the host's sockets. It is taken as it is at that instant, which is what a branch of it
//! gets, however much later.

use std::fs::File;
use std::io;

use proto::control::PAUSED as MARK;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::freeze::CaptureError;
use crate::vm::Vm;

/// Why a VM is as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PauseError {
    /// Its vCPUs do not stop.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Nobody could tell.
    #[error("its directory cannot say so: {source}")]
    Mark {
        /// What the system says.
        source: io::Error,
    },
}

impl Vm {
    /// Whether it is paused.
    pub(crate) const fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Stops it, and says so in its directory.
    pub(crate) fn pause(&mut self, home: Option<&File>) -> Result<(), PauseError> {
        if self.is_paused() {
            return Ok(());
        }
        let frozen = self.capture()?;
        if let Some(home) = home
            && let Err(errno) = mark(home, MARK)
        {
            self.go_on();
            return Err(PauseError::Mark { source: errno.into() });
        }
        self.paused = Some(frozen);
        Ok(())
    }

    /// Lets it go on; its directory says so before it does.
    pub(crate) fn resume(&mut self, home: Option<&File>) -> Result<(), PauseError> {
        if !self.is_paused() {
            return Ok(());
        }
        match home.map(|home| rustix::fs::unlinkat(home, MARK, AtFlags::empty())) {
            None | Some(Ok(()) | Err(Errno::NOENT)) => {}
            Some(Err(errno)) => return Err(PauseError::Mark { source: errno.into() }),
        }
        self.paused = None;
        self.go_on();
        Ok(())
    }

    /// Lets the vCPUs go on after their state was taken, unless the VM is paused.
    pub(crate) fn go_on(&self) {
        if !self.is_paused() {
            self.parking.resume();
        }
    }
}

/// Makes an empty file there.
pub(crate) fn mark(home: &File, name: &str) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    rustix::fs::openat(home, name, flags, Mode::RUSR | Mode::WUSR).map(drop)
}
