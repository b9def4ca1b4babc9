//! Why there is no answer, or not the one hoped for.

use std::io;

use serde::Deserialize;

use crate::endpoint::Endpoint;

/// Why.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody is there, or whoever is does not speak with us.
    #[error("no daemon can be reached at {endpoint}")]
    Unreachable {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        source: Box<ureq::Error>,
    },
    /// The daemon says no.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Its name for the case, which never changes its meaning.
        code: String,
        /// What it says to a person.
        message: String,
    },
    /// The answer broke off.
    #[error("the daemon's answer broke off")]
    Broken {
        /// Why.
        #[from]
        source: io::Error,
    },
    /// The answer is not what it should be: this is another program, or another version.
    #[error("{endpoint} answered in a way that this forkd does not understand; are both of the same version?")]
    Strange {
        /// Where.
        endpoint: Endpoint,
        /// What about it.
        source: serde_json::Error,
    },
}

impl ClientError {
    /// The HTTP status, if the daemon said no.
    #[must_use]
    pub const fn status(&self) -> Option<u16> {
        if let Self::Refused { status, .. } = self { Some(*status) } else { None }
    }

    /// The daemon's name for the case, if it is one of its errors.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        if let Self::Refused { code, .. } = self { Some(code) } else { None }
    }
}

/// An error as the daemon tells it. Its code is text here: a newer daemon knows more of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Told {
    error: String,
    code: String,
    /// Of work that was watched: what it would have been answered with.
    status: u16,
}

impl Told {
    /// As an error of an answer that had this status, if it had one that tells it.
    pub(crate) fn refusal(self, answered: Option<u16>) -> ClientError {
        let status = answered.unwrap_or(self.status);
        let message = if self.error.is_empty() { format!("the daemon answered {status}") } else { self.error };
        ClientError::Refused { status, code: self.code, message }
    }
}
