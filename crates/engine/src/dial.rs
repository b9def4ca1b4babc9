//! A way to whoever listens in a child.

use session::{DialTarget, SessionError, Transport};

use crate::child::Child;

impl Child {
    /// Connects to a TCP port or a unix socket in the guest; needs no network.
    ///
    /// # Errors
    /// When the child is gone, or [`SessionError::Refused`] when nobody is reached there.
    pub fn dial(&self, to: &DialTarget) -> Result<Transport, SessionError> {
        self.connect()?.dial(to)
    }
}
