//! The end of a VM that others are to be made of: it is stopped at one instant and written down.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use proto::control::{FromVmm, ToVmm};

use crate::cancel::Cancel;
use crate::hearing::Waited;
use crate::process::ProcessError;
use crate::vm::Vm;

/// How long writing it down may take: all of its memory, to a disk that may be slow.
const LIMIT: Duration = Duration::from_secs(300);

/// Why a VM is not written down.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// The VMM could not do it.
    #[error("the VM could not be written down: {message}")]
    Failed {
        /// The VMM's words.
        message: String,
    },
    /// The VM ended, or its VMM died, before it was.
    #[error("the VM ended before it was written down; its console's last lines:\n{console}")]
    Ended {
        /// The console's last lines.
        console: String,
    },
    /// It took too long.
    #[error("the VM was not written down within {} s; is the disk that slow?", LIMIT.as_secs())]
    Slow,
    /// It was called off.
    #[error("interrupted while the VM was being written down")]
    Cancelled,
    /// The VMM could not be spoken to.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// For how long the guest did not run before it was all in memory.
    pub pause_us: u64,
    /// Bytes of guest memory that are not zero.
    pub memory_bytes: u64,
    /// Bytes the guest had written to its disks.
    pub disk_bytes: u64,
}

impl Vm {
    /// Stops the VM for good and writes it to these empty files: state, memory, then one for each writable disk.
    pub(crate) fn freeze(self, files: &[&File], cancel: Option<&Cancel>) -> Result<Frozen, FreezeError> {
        let process = self.process();
        let page_map = process.page_map()?;
        let fds: Vec<_> = std::iter::once(&page_map).chain(files.iter().copied()).map(AsFd::as_fd).collect();
        process.send(&ToVmm::Freeze, &fds)?;
        match process.wait(Instant::now() + LIMIT, cancel)? {
            Waited::Event(FromVmm::Frozen { pause_us, memory_bytes, disk_bytes }) => {
                Ok(Frozen { pause_us, memory_bytes, disk_bytes })
            }
            Waited::Event(FromVmm::FreezeFailed { message }) => Err(FreezeError::Failed { message }),
            Waited::TimedOut => Err(FreezeError::Slow),
            Waited::Cancelled => Err(FreezeError::Cancelled),
            Waited::Event(_) | Waited::Gone => Err(FreezeError::Ended { console: self.console_tail() }),
        }
    }
}
