//! How a session fails.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use proto::codec::{CodecError, MAX_PAYLOAD};
use proto::guest::ErrorCode;

/// Why a session could not begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The VMM's socket cannot be reached: the VM does not run, or not as this user.
    #[error("cannot reach the VM through {}: {source}", socket.display())]
    Unreachable {
        /// The VMM's end of the vsock device.
        socket: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The VM stands still, so nothing in it can answer.
    #[error("sandbox {id} is paused; resume it first")]
    Paused {
        /// Which VM.
        id: String,
    },
    /// The VM runs and nothing in it listens on the port, yet or any more.
    #[error("nothing in the VM listens on vsock port {port}")]
    NotListening {
        /// The port asked for.
        port: u32,
    },
    /// The agent in a snapshot stays the one it was taken with, and this one is older than what was asked of it.
    #[error(
        "this snapshot's agent is older than this forkd (it speaks generation {generation}, this needs {needed}); make the \
         snapshot anew"
    )]
    AgentTooOld {
        /// What the agent speaks.
        generation: u16,
        /// What the request needs.
        needed: u16,
    },
    /// The agent says no.
    #[error("{message}")]
    Refused {
        /// Which case it is.
        code: ErrorCode,
        /// The agent's words.
        message: String,
    },
    /// The connection ended before the answer: the VM or its agent went away.
    #[error("the connection to the agent was lost: {source}")]
    Lost {
        /// What the system says.
        source: io::Error,
    },
    /// The other side does not speak this protocol.
    #[error("the agent sent what it may not send: {what}")]
    Protocol {
        /// What came.
        what: String,
    },
    /// No answer came in time.
    #[error("the agent did not answer within {} ms", waited.as_millis())]
    Timeout {
        /// How long was waited.
        waited: Duration,
    },
    /// The process does not read what it is sent.
    #[error(
        "the process took no more input for {} s, and has taken at least {taken_bytes} bytes of this",
        waited.as_secs()
    )]
    NotTaken {
        /// How long was waited.
        waited: Duration,
        /// What it has been given for certain.
        taken_bytes: u64,
    },
    /// The request is longer than what an agent takes; nothing was sent.
    #[error("the request is longer than the {} KiB an agent takes", MAX_PAYLOAD >> 10)]
    RequestTooLong,
    /// The process is over; there is nothing to signal, resize or feed any more.
    #[error("the process has already ended")]
    Ended,
    /// More output came than the caller wanted to keep.
    #[error("the process wrote more than {limit_bytes} bytes")]
    TooMuchOutput {
        /// The limit given.
        limit_bytes: usize,
    },
}

impl SessionError {
    /// The connection's end where an answer was due.
    pub(crate) fn closed() -> Self {
        Self::Lost { source: io::ErrorKind::UnexpectedEof.into() }
    }

    pub(crate) fn unexpected(what: &impl std::fmt::Debug) -> Self {
        Self::Protocol { what: format!("{what:?}") }
    }

    /// Sorts what the codec says, for an answer waited for so long.
    pub(crate) fn from_codec(error: CodecError, waited: Duration) -> Self {
        match error {
            CodecError::Io { source }
                if matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Self::Timeout { waited }
            }
            CodecError::Io { source } => Self::Lost { source },
            error => Self::Protocol { what: error.to_string() },
        }
    }
}

impl From<CodecError> for SessionError {
    fn from(error: CodecError) -> Self {
        Self::from_codec(error, Duration::ZERO)
    }
}
