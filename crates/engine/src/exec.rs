//! A process in a VM; many at once are many connections.

use std::path::Path;
use std::time::Duration;

use proto::guest::AGENT_PORT;
use session::{Connection, Exec, ExecRequest, SessionError};

use crate::child::Child;
use crate::vm::Vm;

/// An agent that answered once answers again soon, unless its guest is in trouble.
const HELLO_PATIENCE: Duration = Duration::from_secs(30);

fn connect(vsock: &Path) -> Result<Connection, SessionError> {
    Connection::open(session::connect_vsock(vsock, AGENT_PORT)?, None, HELLO_PATIENCE)
}

impl Vm {
    /// A new connection to the agent.
    ///
    /// # Errors
    /// When the VM is gone or its agent does not answer.
    pub fn connect(&self) -> Result<Connection, SessionError> {
        connect(&self.vsock())
    }

    /// Starts a process on a connection of its own.
    ///
    /// # Errors
    /// When the VM is gone, or [`SessionError::Refused`] when the process could not be started.
    pub fn exec(&self, request: &ExecRequest) -> Result<Exec, SessionError> {
        self.connect()?.exec(request)
    }
}

impl Child {
    /// A new connection to the agent.
    ///
    /// # Errors
    /// When the child is gone or its agent does not answer; [`SessionError::Paused`], at once, when it is paused.
    pub fn connect(&self) -> Result<Connection, SessionError> {
        if self.is_paused() {
            return Err(SessionError::Paused { id: self.id().into() });
        }
        connect(&self.vsock())
    }

    /// Starts a process on a connection of its own.
    ///
    /// # Errors
    /// When the child is gone, or [`SessionError::Refused`] when the process could not be started.
    pub fn exec(&self, request: &ExecRequest) -> Result<Exec, SessionError> {
        self.connect()?.exec(request)
    }
}
