//! The end of children, asked for.

use std::io;
use std::time::{Duration, Instant};

use proto::control::ToVmm;
use types::Dirs;

use crate::child::Child;
use crate::childdir::{DEATH_PATIENCE, bury};
use crate::pidfd::Process;
use crate::pool;
use crate::vmdir::{self, VmDirError};

/// Beyond this a VMM that was told to stop is killed. Generous: many that stop at once on a slow host take a while.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Why a child may still live.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// The system says no.
    #[error("cannot end sandbox {id}")]
    Io {
        /// Which child.
        id: String,
        /// What the system says.
        source: io::Error,
    },
    /// It was killed and its process is still there.
    #[error("sandbox {id} (process {pid}) was killed and does not end; the host may be waiting for a disk")]
    Stuck {
        /// Which child.
        id: String,
        /// Its process.
        pid: i32,
    },
}

/// Ends a child and removes its control group and its directory. One that is dead already is no error.
///
/// # Errors
/// When it may still live.
pub fn kill(child: &Child) -> Result<(), KillError> {
    let failed = |source| KillError::Io { id: child.id().into(), source };
    if let Some((control, process)) = child.call().map_err(failed)? {
        // One that cannot be told is killed all the same.
        if let Err(error) = control.send(&ToVmm::Stop, &[]) {
            log::debug!("{} was not told to stop: {error}", child.id());
        }
        if !over(&process).map_err(failed)? {
            return Err(KillError::Stuck { id: child.id().into(), pid: process.pid() });
        }
    }
    bury(child.path(), DEATH_PATIENCE).map_err(failed)
}

/// Ends many at once; the results are in the order of the children.
#[must_use]
pub fn kill_many(children: &[Child]) -> Vec<Result<(), KillError>> {
    pool::each(children.iter().collect(), kill)
}

/// Removes what dead VMs left. Children that have an owner are left to it: what they left tells what they died of.
///
/// # Errors
/// When the directory of all cannot be read.
pub fn sweep(dirs: &Dirs) -> Result<(), VmDirError> {
    vmdir::sweep(&dirs.run, |child| child.owner.is_some())
}

/// Removes what dead VMs left, whoever owned them, but for the children of which somebody has yet to learn how they ended.
///
/// # Errors
/// When the directory of all cannot be read.
pub fn sweep_but(is_awaited: impl Fn(&str) -> bool, dirs: &Dirs) -> Result<(), VmDirError> {
    vmdir::sweep(&dirs.run, |child| is_awaited(&child.id))
}

fn over(process: &Process) -> io::Result<bool> {
    if process.wait(Instant::now() + STOP_PATIENCE)? {
        return Ok(true);
    }
    process.kill()?;
    process.wait(Instant::now() + DEATH_PATIENCE)
}
