//! The client: one question, one answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::{MAX_LINE, MAX_OUTPUT};
use crate::Transport;
use crate::transport::Until;

/// How long somebody may take to take the connection.
const CONNECTING: Duration = Duration::from_secs(2);
/// The longest answer: two outputs, each byte of which can take six.
const MAX_ANSWER: usize = 2 * 6 * MAX_OUTPUT + MAX_LINE;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody is there.
    #[error("nobody answers at {address}")]
    Unreachable {
        /// Where it was tried.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// There was no whole answer in time.
    #[error("the answer of {address} did not come")]
    Silent {
        /// Who was asked.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The answer is not of this protocol.
    #[error("{address} speaks something else")]
    Strange {
        /// Who was asked.
        address: SocketAddr,
        /// What the parser says.
        source: serde_json::Error,
    },
}

/// Asks whoever speaks this protocol there; the answer comes within `patience` or not at all.
///
/// # Errors
/// When nobody is there, or does not answer, or speaks something else.
pub fn ask(address: SocketAddr, question: &Value, patience: Duration) -> Result<Value, AskError> {
    let stream =
        TcpStream::connect_timeout(&address, CONNECTING).map_err(|source| AskError::Unreachable { address, source })?;
    let answer = converse(&Transport::from(stream), question, patience)
        .map_err(|source| AskError::Silent { address, source })?;
    serde_json::from_str(&String::from_utf8_lossy(&answer)).map_err(|source| AskError::Strange { address, source })
}

fn converse(server: &Transport, question: &Value, patience: Duration) -> io::Result<Vec<u8>> {
    let mut until = Until::new(server, patience);
    until.write_all(format!("{question}\n").as_bytes())?;
    server.end()?;
    let mut answer = Vec::new();
    until.take(MAX_ANSWER as u64).read_to_end(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
}
