//! Whether a child's agent answers.

use std::time::{Duration, Instant};

use session::{AgentHello, SessionError};

use crate::child::Child;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pong {
    /// What the agent says about itself.
    pub agent: AgentHello,
    /// From the question on an open connection to the answer.
    pub round_trip: Duration,
}

impl Child {
    /// Waits for the agent to answer.
    ///
    /// # Errors
    /// When it does not.
    pub fn ping(&self) -> Result<Pong, SessionError> {
        let mut connection = self.connect()?;
        let begun = Instant::now();
        connection.ping()?;
        Ok(Pong { agent: connection.hello().clone(), round_trip: begun.elapsed() })
    }
}
