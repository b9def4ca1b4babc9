//! A VM that stands still until it is told to go on.
//!
//! Its vCPUs are parked, and the loop listens to nobody but those who give orders, so its devices stand still as well: what
//! the host has for them waits in the host's sockets. It is taken as it is at that instant, which is what a branch of it
//! gets, however much later.

use std::fs::File;
use std::io;

use proto::control::Mark;

use crate::freeze::CaptureError;
use crate::vm::Vm;

/// Why a VM is as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PauseError {
    /// Its vCPUs do not stop.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Nobody could tell.
    #[error("its state cannot say so: {source}")]
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

    /// Stops it, and says so in its state.
    pub(crate) fn pause(&mut self, state: Option<&File>) -> Result<(), PauseError> {
        if self.is_paused() {
            return Ok(());
        }
        let frozen = self.capture()?;
        if let Some(state) = state
            && let Err(source) = Mark::Paused.set(state, true)
        {
            self.go_on();
            return Err(PauseError::Mark { source });
        }
        self.paused = Some(frozen);
        Ok(())
    }

    /// Lets it go on; its state says so before it does.
    pub(crate) fn resume(&mut self, state: Option<&File>) -> Result<(), PauseError> {
        if !self.is_paused() {
            return Ok(());
        }
        if let Some(state) = state {
            Mark::Paused.set(state, false).map_err(|source| PauseError::Mark { source })?;
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
