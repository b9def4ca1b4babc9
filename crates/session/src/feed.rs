//! Bytes for one request, within the window that the agent's credit opens.

use std::sync::Arc;
use std::time::Duration;

use proto::codec::{Channel, read_message, write_frame};
use proto::guest::{MAX_CHUNK, Reply, STDIN_WINDOW};

use crate::transport::Until;
use crate::{SessionError, Transport};

/// The sending side of a request that takes bytes. Dropped before its end it hangs up, and the agent knows that it is not
/// to go by what it has.
#[derive(Debug)]
pub(crate) struct Feed {
    transport: Arc<Transport>,
    open: usize,
    patience: Duration,
    taken_bytes: u64,
    over: bool,
}

impl Feed {
    /// The agent has agreed to take bytes; for its credit, and for its answer, it is waited so long.
    pub(crate) const fn new(transport: Arc<Transport>, patience: Duration) -> Self {
        Self { transport, open: STDIN_WINDOW, patience, taken_bytes: 0, over: false }
    }

    /// Waits so long from now on.
    pub(crate) const fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// How many bytes the agent has passed on, and said so.
    pub(crate) const fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// Sends some of the bytes, at least one unless there is none; how many.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, SessionError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        if self.over {
            return Err(SessionError::Ended);
        }
        while self.open == 0 {
            if let Some(reply) = self.hear()? {
                return Err(self.end(SessionError::unexpected(&reply)));
            }
        }
        let count = bytes.len().min(self.open).min(MAX_CHUNK);
        self.put(&bytes[..count])?;
        self.open -= count;
        Ok(count)
    }

    /// Says that these were all; the agent's answer.
    pub(crate) fn finish(&mut self) -> Result<Reply, SessionError> {
        if self.over {
            return Err(SessionError::Ended);
        }
        self.put(&[])?;
        loop {
            if let Some(reply) = self.hear()? {
                self.over = true;
                return Ok(reply);
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let mut until = Until::new(&self.transport, self.patience);
        let sent = write_frame(&mut until, Channel::Stdin, bytes);
        sent.map_err(|error| SessionError::from_codec(error, self.patience)).map_err(|error| self.end(error))
    }

    /// Takes in what the agent says; an answer that is not credit.
    fn hear(&mut self) -> Result<Option<Reply>, SessionError> {
        let mut until = Until::new(&self.transport, self.patience);
        let heard = read_message(&mut until);
        match heard.map_err(|error| SessionError::from_codec(error, self.patience)) {
            Ok(Some(Reply::StdinCredit { bytes })) => match usize::try_from(bytes) {
                Ok(room) if room <= STDIN_WINDOW - self.open => {
                    self.open += room;
                    self.taken_bytes += bytes;
                    Ok(None)
                }
                _ => Err(self.end(SessionError::Protocol { what: format!("credit for {bytes} bytes") })),
            },
            Ok(Some(Reply::Error { code, message })) => Err(self.end(SessionError::Refused { code, message })),
            Ok(Some(reply)) => Ok(Some(reply)),
            Ok(None) => Err(self.end(SessionError::closed())),
            Err(error) => Err(self.end(error)),
        }
    }

    /// Nothing more may be sent: the agent would take it for something else.
    fn end(&mut self, error: SessionError) -> SessionError {
        self.hang_up();
        error
    }

    fn hang_up(&mut self) {
        self.over = true;
        // Fails when the agent is gone already, which is what was wanted.
        drop(self.transport.hang_up());
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        if !self.over {
            self.hang_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use proto::codec::write_message;

    use super::*;

    #[test]
    fn an_agent_that_gives_no_more_credit_is_waited_for_no_longer_than_said() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut feed = Feed::new(Arc::new(ours.into()), Duration::from_secs(10));
        let reader = theirs.try_clone().unwrap();
        let taken = std::thread::spawn(move || std::io::copy(&mut &reader, &mut std::io::sink()).unwrap());
        let mut sent = 0;
        while sent < STDIN_WINDOW {
            sent += feed.send(&[0; MAX_CHUNK]).unwrap();
        }
        write_message(&mut theirs, &Reply::StdinCredit { bytes: 1000 }).unwrap();
        assert_eq!(feed.send(&[0; MAX_CHUNK]).unwrap(), 1000);
        let short = Duration::from_millis(20);
        feed.set_patience(short);
        let late = feed.send(&[0]).unwrap_err();
        assert!(matches!(late, SessionError::Timeout { waited } if waited == short), "{late:?}");
        assert_eq!(feed.taken_bytes(), 1000);
        assert!(matches!(feed.send(&[0]), Err(SessionError::Ended)));
        assert!(taken.join().unwrap() > sent as u64);
    }
}
