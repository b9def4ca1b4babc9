//! A process that runs in the guest, seen from the host.

use std::sync::Arc;

use proto::codec::{Channel, Frame, read_frame};
use proto::guest::{AgentHello, ExitStatus, MAX_CHUNK, Reply};

use crate::flow::Flow;
use crate::{Connection, ExecControl, SessionError, StdinWriter, Transport};

/// What a process does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It wrote to standard output, or its terminal. Never empty.
    Stdout(Vec<u8>),
    /// It wrote to standard error. Never empty.
    Stderr(Vec<u8>),
    /// It ended; nothing comes after this.
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// The agent killed it because its time was up.
        timed_out: bool,
    },
}

/// A session. Dropping it before [`Event::Exited`] hangs up, and the agent kills the process group.
#[derive(Debug)]
pub struct Exec {
    /// The process's id in the guest; also its process group.
    pub pid: i32,
    transport: Arc<Transport>,
    hello: AgentHello,
    flow: Arc<Flow>,
    over: bool,
}

impl Exec {
    pub(crate) fn new(transport: Arc<Transport>, hello: AgentHello, pid: i32) -> Self {
        let flow = Arc::new(Flow::new(Arc::clone(&transport)));
        Self { pid, transport, hello, flow, over: false }
    }

    /// A way to feed the process; it reads anything only if it was started with pipes or a terminal.
    #[must_use]
    pub fn stdin(&self) -> StdinWriter {
        StdinWriter::new(Arc::clone(&self.flow))
    }

    /// A way to signal and resize it.
    #[must_use]
    pub fn control(&self) -> ExecControl {
        ExecControl::new(Arc::clone(&self.flow))
    }

    /// Waits for what the process does next, however long that takes.
    ///
    /// # Errors
    /// [`SessionError::Lost`] when the VM goes away, [`SessionError::Refused`] when the agent ends the session,
    /// [`SessionError::Ended`] after [`Event::Exited`]. After any error the session is over.
    pub fn next_event(&mut self) -> Result<Event, SessionError> {
        if self.over {
            return Err(SessionError::Ended);
        }
        let result = self.receive();
        match &result {
            Ok(Event::Stdout(_) | Event::Stderr(_)) => {}
            Ok(Event::Exited { .. }) => {
                self.over = true;
                self.flow.end();
            }
            Err(_) => self.hang_up(),
        }
        result
    }

    /// The connection, for the next request; only after [`Event::Exited`].
    ///
    /// # Errors
    /// Hands the session back when it is not over.
    pub fn into_connection(self) -> Result<Connection, Box<Self>> {
        if self.over {
            Ok(Connection::from_parts(Arc::clone(&self.transport), self.hello.clone()))
        } else {
            Err(Box::new(self))
        }
    }

    /// Leaves the session. Other handles may hold the stream open, so closing ours would tell the agent nothing.
    pub(crate) fn hang_up(&self) {
        // Fails when the agent is gone already, which is what was wanted.
        drop(self.transport.hang_up());
        self.flow.end();
    }

    fn receive(&self) -> Result<Event, SessionError> {
        loop {
            let frame = read_frame(&mut &*self.transport)?.ok_or_else(SessionError::closed)?;
            match frame.channel {
                // An empty frame only says that the stream is over, which the exit says as well.
                Channel::Stdout | Channel::Stderr if frame.payload.is_empty() => {}
                Channel::Stdout => return Ok(Event::Stdout(chunk(frame)?)),
                Channel::Stderr => return Ok(Event::Stderr(chunk(frame)?)),
                Channel::Stdin => return Err(SessionError::unexpected(&frame.channel)),
                Channel::Message => match frame.message()? {
                    Reply::StdinCredit { bytes } if self.flow.credit(bytes) => {}
                    Reply::Exited { status, timed_out } => return Ok(Event::Exited { status, timed_out }),
                    Reply::Error { code, message } => return Err(SessionError::Refused { code, message }),
                    reply => return Err(SessionError::unexpected(&reply)),
                },
            }
        }
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        if !self.over {
            self.hang_up();
        }
    }
}

/// The bytes of a frame, of which no agent sends more at once: what waits for a slow reader is counted in frames.
pub(crate) fn chunk(frame: Frame) -> Result<Vec<u8>, SessionError> {
    if frame.payload.len() > MAX_CHUNK {
        return Err(SessionError::Protocol { what: format!("{} bytes at once", frame.payload.len()) });
    }
    Ok(frame.payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bytes_at_once_than_an_agent_sends_are_refused() {
        let frame = |length| Frame { channel: Channel::Stdout, payload: vec![0; length] };
        assert_eq!(chunk(frame(MAX_CHUNK)).unwrap().len(), MAX_CHUNK);
        assert!(matches!(chunk(frame(MAX_CHUNK + 1)), Err(SessionError::Protocol { .. })));
    }
}
