//! A connection that becomes one to somebody else in the guest.

use std::sync::Arc;
use std::time::Duration;

use proto::guest::{DialTarget, Reply, Request};

use crate::{Connection, SessionError, Transport};

/// Longer than the agent lets a server take.
const PATIENCE: Duration = Duration::from_secs(30);

impl Connection {
    /// Connects to a TCP port or a unix socket in the guest. What is read and written then is that server's; each side may
    /// end its half by itself.
    ///
    /// # Errors
    /// [`SessionError::Refused`] with `ConnectionRefused` when nobody listens there, `NotFound` when there is no such
    /// socket, `BadArgument` when the address is not the guest's.
    pub fn dial(self, to: &DialTarget) -> Result<Transport, SessionError> {
        match self.ask(&Request::Dial { to: to.clone() }, PATIENCE)? {
            Reply::Done => {}
            reply => return Err(SessionError::unexpected(&reply)),
        }
        Arc::into_inner(self.into_transport())
            .ok_or_else(|| SessionError::Protocol { what: "somebody else uses the connection".into() })
    }
}
