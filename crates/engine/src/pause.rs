//! A child that stands still, and goes on.

use std::io;
use std::time::{Duration, Instant};

use proto::control::{Condition, ControlError, FromVmm, ToVmm};

use crate::child::{Child, Death};
use crate::hearing::{Waited, hear};

/// How long a child may take to stop. What it really takes are milliseconds; a busy host takes longer.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether a child runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildStatus {
    /// It does.
    Running,
    /// It stands still until it is resumed.
    Paused,
    /// It is over.
    Gone,
}

/// Why a child is as it was.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    /// There is nothing to pause.
    #[error("sandbox {id} does not run any more")]
    Gone {
        /// Which.
        id: String,
    },
    /// It died, and the host knows of what.
    #[error(transparent)]
    Died(#[from] Death),
    /// The VMM could not do it.
    #[error("sandbox {id} could not be paused or resumed: {message}")]
    Failed {
        /// Which.
        id: String,
        /// The VMM's words.
        message: String,
    },
    /// It took too long.
    #[error("sandbox {id} did not answer within {} s", LIMIT.as_secs())]
    Slow {
        /// Which.
        id: String,
    },
    /// The VMM could not be spoken to.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The system says no.
    #[error("cannot call sandbox {id}")]
    Io {
        /// Which.
        id: String,
        /// What the system says.
        source: io::Error,
    },
}

impl Child {
    /// Has it stand still: its processors and its devices. It keeps its memory, and can be branched and killed. One that
    /// does already is no error.
    ///
    /// # Errors
    /// When it is gone, or its VMM cannot do it.
    pub fn pause(&self) -> Result<(), PauseError> {
        self.tell(&ToVmm::Pause, &FromVmm::Paused)
    }

    /// Has it go on. One that runs is no error.
    ///
    /// # Errors
    /// When it is gone, or its VMM cannot do it.
    pub fn resume(&self) -> Result<(), PauseError> {
        self.tell(&ToVmm::Resume, &FromVmm::Resumed)
    }

    /// Whether it is paused. Looks into its directory and asks nobody.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.condition()
            .unwrap_or_else(|error| {
                log::warn!("whether {} is paused cannot be found out: {error}", self.id());
                Condition::default()
            })
            .paused
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// When its directory cannot be looked at.
    pub fn status(&self) -> io::Result<ChildStatus> {
        Ok(match (self.is_alive()?, self.is_paused()) {
            (false, _) => ChildStatus::Gone,
            (true, true) => ChildStatus::Paused,
            (true, false) => ChildStatus::Running,
        })
    }

    fn tell(&self, message: &ToVmm, done: &FromVmm) -> Result<(), PauseError> {
        let id = || self.id().to_owned();
        let gone = || self.cause_of_death().map_or_else(|| PauseError::Gone { id: id() }, PauseError::Died);
        let called = self.call().map_err(|source| PauseError::Io { id: id(), source })?;
        let Some((control, _)) = called else { return Err(gone()) };
        control.send(message, &[])?;
        match hear(&control, Instant::now() + LIMIT, None)? {
            Waited::Event(event) if event == *done => Ok(()),
            Waited::Event(FromVmm::PauseFailed { message }) => Err(PauseError::Failed { id: id(), message }),
            Waited::TimedOut => Err(PauseError::Slow { id: id() }),
            Waited::Event(_) | Waited::Gone | Waited::Cancelled => Err(gone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proto::control::{ControlSocket, Mark, STATE, listen};
    use session::SessionError;
    use store::Parent;

    use super::*;
    use crate::childdir::{ChildDir, Wanted};

    fn childdir(run: &tempfile::TempDir) -> ChildDir {
        let parent = Parent { tag: "t".parse().unwrap(), id: "1".into() };
        ChildDir::create_many(run.path(), &parent, &[Wanted::default()]).unwrap().remove(0)
    }

    #[test]
    fn a_child_is_told_and_what_it_says_is_heard() {
        let run = tempfile::tempdir().unwrap();
        let dir = childdir(&run);
        let listener = listen(&dir.path().join("control.sock")).unwrap();
        rustix::io::ioctl_fionbio(&listener, false).unwrap();
        let answers =
            [FromVmm::Paused, FromVmm::Resumed, FromVmm::PauseFailed { message: "no".into() }, FromVmm::Resumed];
        let vmm = thread::spawn(move || {
            answers.map(|answer| {
                let caller = ControlSocket::from(rustix::net::accept(&listener).unwrap());
                let (said, _) = caller.recv::<ToVmm>().unwrap().unwrap();
                caller.send(&answer, &[]).unwrap();
                said
            })
        });
        let child = dir.child();
        child.pause().unwrap();
        child.resume().unwrap();
        assert!(matches!(child.pause(), Err(PauseError::Failed { message, .. }) if message == "no"));
        assert!(matches!(child.pause(), Err(PauseError::Gone { .. })), "that is not an answer");
        assert_eq!(vmm.join().unwrap(), [ToVmm::Pause, ToVmm::Resume, ToVmm::Pause, ToVmm::Pause]);
        assert!(matches!(child.resume(), Err(PauseError::Gone { .. })), "nobody listens any more");
    }

    #[test]
    fn a_paused_child_is_not_waited_for() {
        let run = tempfile::tempdir().unwrap();
        let dir = childdir(&run);
        let child = dir.child();
        assert_eq!(child.status().unwrap(), ChildStatus::Running);
        assert!(matches!(child.ping(), Err(SessionError::Unreachable { .. })));
        let state = std::fs::File::options().write(true).open(child.path().join(STATE)).unwrap();
        Mark::Paused.set(&state, true).unwrap();
        assert_eq!(child.status().unwrap(), ChildStatus::Paused);
        assert!(matches!(child.ping(), Err(SessionError::Paused { .. })));
    }
}
