//! Code in a child's warm interpreter.

use std::time::Duration;

use session::{EvalRequest, Evaluation, SessionError};

use crate::child::Child;

impl Child {
    /// Runs code in the warm interpreter. An exception and a timeout are results: see [`Evaluation::error`].
    ///
    /// # Errors
    /// When the child is gone, or [`SessionError::Refused`] when the code was not run.
    pub fn eval(&self, code: &str, limit: Duration) -> Result<Evaluation, SessionError> {
        let timeout_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.connect()?.eval(&EvalRequest { code: code.into(), timeout_ms })
    }
}
