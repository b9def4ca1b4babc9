//! How a fork fails, as a whole and for one child.

use std::io;
use std::time::Duration;

use proto::control::{ControlError, RefusalCode};
use session::SessionError;
use store::StoreError;
use types::Tag;

use super::MAX_CHILDREN;
use crate::admission::AdmissionError;
use crate::cgroup::{CgroupError, MemoryLimit};
use crate::template::TemplateError;
use crate::uids::UidError;
use crate::vmdir::VmDirError;

/// Why nothing was forked.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// Not a number of children one can ask for.
    #[error("a fork makes 1 to {MAX_CHILDREN} children; {asked} were asked for")]
    Count {
        /// How many.
        asked: usize,
    },
    /// The snapshot cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The children have no place for their sockets and logs.
    #[error(transparent)]
    Dir(#[from] VmDirError),
    /// The limits cannot be held here.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// There are no users left for them.
    #[error(transparent)]
    Uid(#[from] UidError),
    /// The host has no room for them.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The template could not be spoken to.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Every child needs a network of its own, and nobody gives one.
    #[error("snapshot `{tag}` has a network card, and each of its children needs a network: use `forkd spawn`")]
    Network {
        /// The tag.
        tag: Tag,
    },
    /// What the children may connect to is said, and they cannot connect at all.
    #[error("snapshot `{tag}` has no network card; `forkd snapshot --egress none` takes one that has")]
    NoNetwork {
        /// The tag.
        tag: Tag,
    },
    /// What its manifest says about egress is none.
    #[error("the egress policy of snapshot `{tag}` is not understood; say another with --egress")]
    Egress {
        /// The tag.
        tag: Tag,
        /// Why.
        source: net::PolicyError,
    },
    /// There is no network for a child.
    #[error(transparent)]
    Host(#[from] net::NetworkError),
    /// A child failed, and the others were ended because of it.
    #[error("{failed} of {asked} children failed, and the others were ended; {id}: {source}")]
    Child {
        /// The first that failed.
        id: String,
        /// How many failed by themselves.
        failed: usize,
        /// How many there should have been.
        asked: usize,
        /// Why it failed.
        source: ChildError,
    },
    /// It was called off; nothing is left.
    #[error("interrupted while the children were being made; none is left")]
    Cancelled,
    /// The system says no.
    #[error("cannot {action}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// Why there is no child. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// Its VMM could not build it.
    #[error("{message}")]
    NotStarted {
        /// Which case it is.
        code: RefusalCode,
        /// The VMM's words.
        message: String,
    },
    /// Its process died before it was ready.
    #[error("its process died before it was ready; its log's last lines:\n{log}\nand its console's:\n{console}")]
    Died {
        /// The log's last lines.
        log: String,
        /// The console's last lines.
        console: String,
    },
    /// It needed more memory than it may have, before it was ready.
    #[error("it ran out of its memory limit of {limit} before it was ready; give it more")]
    OutOfMemory {
        /// What it may have.
        limit: MemoryLimit,
    },
    /// The template died before it had forked it.
    #[error("the template died; its log's last lines:\n{log}")]
    TemplateDied {
        /// The log's last lines.
        log: String,
    },
    /// It was not ready in time.
    #[error("it was not ready within {} s; its console's last lines:\n{console}", limit.as_secs_f32())]
    Silent {
        /// The time limit.
        limit: Duration,
        /// The console's last lines.
        console: String,
    },
    /// Its agent cannot be used, or could not make it somebody of its own.
    #[error("its agent failed: {source}")]
    Agent {
        /// What it said.
        source: SessionError,
    },
    /// It was ended because another failed, or because the fork was called off.
    #[error("it was ended with the others")]
    Ended,
    /// The system says no.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
}
