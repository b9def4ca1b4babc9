//! After a fork: the guest wakes up believing it is its parent, and is told who it is.
//!
//! ```text
//! wall clock ─> entropy ─> host name ─> machine id ─> /run/forkd ─> environment ─> interpreter ─> hooks
//! ```
//!
//! In this order, because the time that was told is over soon, hooks may use all that comes before them, and the random
//! bytes they draw must already be their own. The answer is given when everything is done; whatever fails is named, and the whole may be done again.

mod files;
mod hooks;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use proto::guest::{RenewRequest, Renewed};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec};

use crate::interpreter::{ControlError, WarmInterpreter};
use crate::launch::Launcher;
use crate::sys;

/// Which step of a renewal failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenewError {
    #[error("this agent has no machine to renew; one that is started with --root renews the files below it")]
    NoMachine,
    #[error("renew: cannot {step}: {source}")]
    Step { step: &'static str, source: io::Error },
    #[error("renew: cannot write {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("renew: {0}")]
    Interpreter(#[from] ControlError),
    #[error("renew: {0}")]
    Hook(#[from] hooks::HookError),
}

/// What a renewal may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All of the machine: this is its first process.
    Machine,
    /// Files below a directory, and what the agent itself starts.
    Directory(PathBuf),
    /// Nothing.
    Nothing,
}

impl Scope {
    /// How long an interpreter may take: in an emulated host, among many that wake up together, much longer than here.
    const fn patience(&self) -> Duration {
        match self {
            Self::Machine => Duration::from_secs(45),
            Self::Directory(_) | Self::Nothing => Duration::from_secs(10),
        }
    }
}

/// Renews, one request at a time.
pub(crate) struct Renewer {
    scope: Scope,
    launcher: Arc<Launcher>,
    interpreter: Arc<WarmInterpreter>,
    turn: Mutex<()>,
}

impl Renewer {
    pub(crate) fn new(scope: Scope, launcher: Arc<Launcher>, interpreter: Arc<WarmInterpreter>) -> Self {
        Self { scope, launcher, interpreter, turn: Mutex::default() }
    }

    /// Does all of it; returns when it is done.
    pub(crate) fn renew(&self, request: &RenewRequest) -> Result<Renewed, RenewError> {
        let begun = Instant::now();
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let root = match &self.scope {
            Scope::Machine => {
                renew_kernel(request)?;
                Path::new("/")
            }
            Scope::Directory(root) => root,
            Scope::Nothing => return Err(RenewError::NoMachine),
        };
        files::write(root, request)?;
        self.launcher.set_renewed(request.env.as_map().clone());
        self.interpreter.renew(request.env.as_map(), self.scope.patience())?;
        hooks::run(&root.join("etc/forkd/renew.d"), &self.launcher, request)?;
        Ok(Renewed {
            took_us: begun.elapsed().as_micros().try_into().unwrap_or(u64::MAX),
            monotonic_ns: nanoseconds(rustix::time::clock_gettime(ClockId::Monotonic)),
        })
    }

    /// Sets the wall clock, where it is ours to set.
    pub(crate) fn set_clock(&self, unix_ns: u64) -> Result<(), RenewError> {
        match self.scope {
            Scope::Machine => set_clock(unix_ns),
            Scope::Directory(_) => Ok(()),
            Scope::Nothing => Err(RenewError::NoMachine),
        }
    }
}

fn step(step: &'static str) -> impl Fn(io::Error) -> RenewError {
    move |source| RenewError::Step { step, source }
}

fn set_clock(unix_ns: u64) -> Result<(), RenewError> {
    let set = rustix::time::clock_settime(ClockId::Realtime, timespec(unix_ns));
    set.map_err(Errno::into).map_err(step("set the wall clock"))
}

fn renew_kernel(request: &RenewRequest) -> Result<(), RenewError> {
    set_clock(request.wall_clock_unix_ns)?;
    sys::reseed(&request.entropy).map_err(step("reseed the kernel's random number generator"))?;
    let name = request.hostname.as_str();
    rustix::system::sethostname(name.as_bytes()).map_err(Errno::into).map_err(step("set the host name"))
}

fn timespec(unix_ns: u64) -> Timespec {
    let (seconds, rest) = (unix_ns / 1_000_000_000, unix_ns % 1_000_000_000);
    // Both fit: 64 bits of nanoseconds are 585 years.
    Timespec { tv_sec: seconds.cast_signed(), tv_nsec: rest.cast_signed() }
}

fn nanoseconds(time: Timespec) -> u64 {
    // Neither part is ever negative on the monotonic clock.
    let [seconds, rest] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_and_timespecs_are_the_same_instant() {
        for ns in [0, 1, 999_999_999, 1_000_000_000, 1_700_000_000_123_456_789, u64::MAX] {
            assert_eq!(nanoseconds(timespec(ns)), ns);
        }
        assert_eq!(timespec(1_700_000_000_000_000_007), Timespec { tv_sec: 1_700_000_000, tv_nsec: 7 });
    }
}
