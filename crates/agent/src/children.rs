//! Who was started, and how it ended.
//!
//! ```text
//! spawn ──> running ──(reaper: wait)──> status known, eventfd readable
//! ```
//!
//! PID 1 inherits every orphan, so one reaper waits for all processes and hands the status to whoever started one.
//! Starting, reaping and signalling exclude each other: a process is in the table before it can be reaped, and a
//! process id is signalled only while it is in the table, when the kernel cannot have given it to somebody else.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use proto::guest::ExitStatus;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus};

use crate::console::say;
use crate::peer::time_left;
use crate::sys;

/// The pause after a wait that failed for no known reason.
const RETRY: Duration = Duration::from_millis(100);

/// All processes of this agent.
#[derive(Debug, Default)]
pub(crate) struct Children {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    running: BTreeMap<i32, Arc<Ending>>,
    /// There may be something to wait for.
    any: bool,
    /// Nothing may be started any more.
    closed: bool,
}

#[derive(Debug)]
struct Ending {
    status: OnceLock<ExitStatus>,
    /// Readable once the status is known.
    known: OwnedFd,
}

/// A started process.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    pid: i32,
    ending: Arc<Ending>,
    children: Arc<Children>,
}

impl Children {
    /// Starts the reaper. From here on nobody else may wait for a process.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let children = Arc::new(Self::default());
        let reaper = Arc::clone(&children);
        thread::Builder::new().name("reaper".into()).spawn(move || reaper.reap_forever())?;
        Ok(children)
    }

    /// Starts a process with `fork`, which returns its id.
    pub(crate) fn spawn(self: &Arc<Self>, fork: impl FnOnce() -> io::Result<i32>) -> io::Result<Child> {
        let known = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ending = Arc::new(Ending { status: OnceLock::new(), known });
        let mut table = self.table();
        if table.closed {
            return Err(io::Error::other("the machine is shutting down"));
        }
        let pid = fork()?;
        table.running.insert(pid, Arc::clone(&ending));
        table.any = true;
        self.changed.notify_all();
        Ok(Child { pid, ending, children: Arc::clone(self) })
    }

    /// Lets nothing more be started.
    pub(crate) fn close(&self) {
        self.table().closed = true;
    }

    /// Kills the groups of all that was started and has not ended.
    pub(crate) fn kill_all(&self) {
        for pid in self.table().running.keys() {
            // Fails only for a group that is gone.
            drop(sys::kill_group(*pid, libc::SIGKILL));
        }
    }

    /// Waits until there is no process left, or for so long.
    pub(crate) fn wait_for_none(&self, patience: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.table(), patience, |table| table.any);
        !waited.unwrap_or_else(PoisonError::into_inner).0.any
    }

    /// The table is whole between any two statements, so a panic under the lock leaves nothing half done.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reap_forever(&self) {
        loop {
            // Only looks: the process must stay a zombie until the table is locked.
            match rustix::process::waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Ok(_) | Err(Errno::INTR | Errno::CHILD) => self.reap_ready(),
                Err(_) => thread::sleep(RETRY),
            }
        }
    }

    /// Reaps what has ended; when nothing is left at all, waits for a start.
    fn reap_ready(&self) {
        let mut table = self.table();
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if let Some(ending) = table.running.remove(&pid.as_raw_pid()) {
                        ending.finish(status);
                    }
                }
                Err(Errno::CHILD) => {
                    table.any = false;
                    self.changed.notify_all();
                    drop(self.changed.wait_while(table, |table| !table.any));
                    return;
                }
                Ok(None) | Err(_) => return,
            }
        }
    }
}

impl Ending {
    fn finish(&self, status: WaitStatus) {
        let status = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => ExitStatus::Code(code),
            (None, Some(signal)) => ExitStatus::Signal(signal),
            // Neither can come back from a wait for ended processes.
            (None, None) => ExitStatus::Code(-1),
        };
        // Set once, because the process leaves the table in the same step.
        if self.status.set(status).is_ok()
            && let Err(errno) = rustix::io::write(&self.known, &1_u64.to_ne_bytes())
        {
            say(format_args!("an exit could not be announced: {errno}"));
        }
    }
}

impl Child {
    pub(crate) const fn pid(&self) -> i32 {
        self.pid
    }

    /// How it ended, if it has.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        self.ending.status.get().copied()
    }

    /// Becomes readable when the status is known.
    pub(crate) fn ended_fd(&self) -> BorrowedFd<'_> {
        self.ending.known.as_fd()
    }

    /// Signals its process group; false when it has already ended.
    pub(crate) fn signal_group(&self, signal: i32) -> io::Result<bool> {
        let table = self.children.table();
        if table.running.contains_key(&self.pid) {
            sys::kill_group(self.pid, signal)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Interrupts the process, and nobody it started; false when it has already ended.
    pub(crate) fn interrupt(&self) -> bool {
        let table = self.children.table();
        let pid = Pid::from_raw(self.pid).filter(|_| table.running.contains_key(&self.pid));
        // Somebody of the same user is there to be signalled while it is in the table.
        pid.is_some_and(|pid| rustix::process::kill_process(pid, Signal::INT).is_ok())
    }

    /// Waits until it has ended, at most until an instant; how it ended.
    pub(crate) fn wait_until(&self, until: Instant) -> Option<ExitStatus> {
        while self.status().is_none() && Instant::now() < until {
            let ended = self.ended_fd();
            match rustix::event::poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&time_left(until))) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        self.status()
    }

    /// Kills its process group; false when it has already ended.
    pub(crate) fn kill(&self) -> bool {
        // The group exists while its leader is in the table, so there is somebody to kill.
        self.signal_group(libc::SIGKILL).unwrap_or(false)
    }
}
