//! One child on its way, from being asked for to being ready or gone.

use proto::control::Outfit;

use super::ForkedChild;
use super::error::ChildError;
use super::ready::Ready;
use crate::childdir::ChildDir;
use crate::pidfd::{Alleged, Process};

/// A child on its way.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) dir: ChildDir,
    /// What it is handed, until it is asked for.
    pub(super) outfit: Option<Outfit>,
    pub(super) process: Option<Alleged>,
    pub(super) state: State,
}

/// How far it is.
#[derive(Debug)]
pub(super) enum State {
    /// Nothing was heard of it yet.
    Asked,
    /// Its vCPUs run, and somebody makes it ready.
    Started {
        /// What its VMM needed.
        setup_us: u64,
    },
    /// It is ready.
    Ready {
        /// What its VMM needed.
        setup_us: u64,
        /// What the rest needed.
        ready: Ready,
    },
    /// There is no child.
    Failed(ChildError),
}

impl Slot {
    pub(super) const fn new(dir: ChildDir, outfit: Outfit) -> Self {
        Self { dir, outfit: Some(outfit), process: None, state: State::Asked }
    }

    pub(super) fn is_asked(&self) -> bool {
        matches!(self.state, State::Asked)
    }

    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, State::Ready { .. } | State::Failed(_))
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }

    /// Ends the process, if it is known and what it is said to be.
    pub(super) fn kill(&self) {
        let Some(alleged) = &self.process else { return };
        match alleged.proven().and_then(|process| process.map(Process::kill).transpose()) {
            Ok(Some(())) => {}
            Ok(None) => log::warn!("process {} is over, or never was {}", alleged.pid(), self.dir.child().id()),
            Err(error) => log::warn!("{} cannot be ended: {error}", self.dir.child().id()),
        }
    }

    /// The child, if it is ready and may live; otherwise nothing of it is left.
    pub(super) fn conclude(self, may_live: bool) -> Result<ForkedChild, ChildError> {
        let Self { dir, process, state, .. } = self;
        match state {
            State::Ready { setup_us, ready } if may_live => {
                // The template may have died before it said which process it is; the child itself knows.
                let asked = || dir.child().pid().map_err(|source| ChildError::Io { action: "call the child", source });
                let pid = process.as_ref().map_or_else(asked, |process| Ok(Some(process.pid())))?;
                let pid = pid.ok_or_else(|| super::ready::died(dir.child()))?;
                let Ready { renew_us, ready_us } = ready;
                Ok(ForkedChild { child: dir.keep(), pid, setup_us, renew_us, ready_us })
            }
            State::Failed(error) => {
                dir.discard(process.as_ref());
                Err(error)
            }
            State::Asked | State::Started { .. } | State::Ready { .. } => {
                dir.discard(process.as_ref());
                Err(ChildError::Ended)
            }
        }
    }
}
