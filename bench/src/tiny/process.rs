//! Processes that are ended by whoever holds them, their child or not.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::wait::Deadline;

/// Memory of gigabytes takes a while to be given back.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process, killed when dropped.
#[derive(Debug)]
pub(super) struct Process(OwnedFd);

impl Process {
    /// Of this number, which must be one that runs.
    pub(super) fn open(pid: i32) -> Result<Self> {
        let pid = Pid::from_raw(pid).context("a process without a number")?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It fails only for a process that is gone already.
        if pidfd_send_signal(&self.0, Signal::KILL).is_ok() {
            // One that does not go is in the way of whoever needs its memory, and found there.
            drop(Deadline::after(PATIENCE).wait("a process's end", &[self.0.as_fd()]));
        }
    }
}
