//! A connection that has said hello: the short requests, and the way into an exec.

use std::sync::Arc;
use std::time::Duration;

use proto::codec::{CodecError, read_message, write_message};
use proto::guest::{
    AgentHello, ExecRequest, GENERATION, MAX_EVAL_TIMEOUT_MS, RenewRequest, Renewed, Reply, Request, WarmRequest,
    Warmed,
};

use crate::transport::Until;
use crate::{Exec, SessionError, Transport};

/// How long an answer that needs no work may take. Generous: an emulated host under load is slow, not dead.
pub(crate) const REPLY_PATIENCE: Duration = Duration::from_secs(60);
/// How long a renewal may take: the agent gives its hooks half of it.
const RENEW_PATIENCE: Duration = Duration::from_secs(120);

/// A connection to an agent, between sessions.
#[derive(Debug)]
pub struct Connection {
    transport: Arc<Transport>,
    hello: AgentHello,
}

/// Ends a connection from any thread: whoever waits on it gets an error at once.
#[derive(Clone, Debug)]
pub struct HangUp(Arc<Transport>);

impl HangUp {
    /// Hangs up. Never blocks.
    pub fn hang_up(&self) {
        // Fails when the agent is gone already, which is what was wanted.
        drop(self.0.hang_up());
    }
}

impl Connection {
    /// Says hello over a fresh stream and waits at most `deadline` for the answer.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when the token is wrong, [`SessionError::Timeout`] and [`SessionError::Lost`] when
    /// nobody serves the other end (yet), [`SessionError::Protocol`] when somebody else does.
    pub fn open(
        transport: impl Into<Transport>,
        token: Option<&str>,
        deadline: Duration,
    ) -> Result<Self, SessionError> {
        let transport = transport.into();
        transport.prepare().map_err(|source| SessionError::Lost { source })?;
        let hello = Request::Hello { generation: GENERATION, token: token.map(Into::into) };
        match ask(&transport, &hello, deadline)? {
            Reply::Hello(hello) if (1..=GENERATION).contains(&hello.generation) => {
                Ok(Self { transport: Arc::new(transport), hello })
            }
            reply => Err(SessionError::unexpected(&reply)),
        }
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    pub(crate) const fn from_parts(transport: Arc<Transport>, hello: AgentHello) -> Self {
        Self { transport, hello }
    }

    /// What the agent said about itself.
    #[must_use]
    pub const fn hello(&self) -> &AgentHello {
        &self.hello
    }

    /// A way to end it from elsewhere, whatever it has become by then.
    #[must_use]
    pub fn hang_up_handle(&self) -> HangUp {
        HangUp(Arc::clone(&self.transport))
    }

    /// Waits for the agent to answer.
    ///
    /// # Errors
    /// When it does not.
    pub fn ping(&mut self) -> Result<(), SessionError> {
        self.expect_done(&Request::Ping)
    }

    /// Makes a forked guest somebody of its own; returns when it is.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when a step could not be done; the message names it. It may be tried again.
    pub fn renew(&mut self, request: &RenewRequest) -> Result<Renewed, SessionError> {
        match self.ask(&Request::Renew(Box::new(request.clone())), RENEW_PATIENCE)? {
            Reply::Renewed(renewed) => Ok(renewed),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }

    /// Sets the guest's wall clock, in nanoseconds since 1970. How far it is off then is no more than this took.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when it could not be set.
    pub fn set_clock(&mut self, unix_ns: u64) -> Result<(), SessionError> {
        self.expect_done(&Request::SetClock { unix_ns })
    }

    /// Starts the warm interpreter and has it import modules; returns when they are imported.
    ///
    /// # Errors
    /// [`SessionError::Refused`]: `NotFound` when there is no such interpreter, `ImportFailed` with the traceback,
    /// `Timeout` when it took too long.
    pub fn warm(&mut self, request: &WarmRequest) -> Result<Warmed, SessionError> {
        match self.ask(&Request::Warm(request.clone()), warm_patience(request.timeout_ms))? {
            Reply::Warmed(warmed) => Ok(warmed),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }

    /// Has the guest shut down; returns when the agent has agreed, before it happens.
    ///
    /// # Errors
    /// When the agent does not agree.
    pub fn poweroff(&mut self) -> Result<(), SessionError> {
        self.expect_done(&Request::Poweroff)
    }

    /// Has the guest restart; returns when the agent has agreed, before it happens.
    ///
    /// # Errors
    /// When the agent does not agree.
    pub fn reboot(&mut self) -> Result<(), SessionError> {
        self.expect_done(&Request::Reboot)
    }

    /// Starts a process; returns when it runs.
    ///
    /// # Errors
    /// [`SessionError::Refused`] when it could not be started; its code says why.
    pub fn exec(self, request: &ExecRequest) -> Result<Exec, SessionError> {
        match self.ask(&Request::Exec(request.clone()), REPLY_PATIENCE)? {
            Reply::Started { pid } => Ok(Exec::new(self.transport, self.hello, pid)),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }

    pub(crate) fn expect_done(&self, request: &Request) -> Result<(), SessionError> {
        match self.ask(request, REPLY_PATIENCE)? {
            Reply::Done => Ok(()),
            reply => Err(SessionError::unexpected(&reply)),
        }
    }

    /// One request and its first reply; nothing is sent to an agent that would not understand it.
    pub(crate) fn ask(&self, request: &Request, patience: Duration) -> Result<Reply, SessionError> {
        if request.since() > self.hello.generation {
            return Err(SessionError::AgentTooOld { generation: self.hello.generation, needed: request.since() });
        }
        ask(&self.transport, request, patience)
    }

    pub(crate) fn into_transport(self) -> Arc<Transport> {
        self.transport
    }
}

/// One request, one reply, both within `patience`; a refusal is an error.
fn ask(transport: &Transport, request: &Request, patience: Duration) -> Result<Reply, SessionError> {
    // A refusal can overtake the request: the agent turns a connection away and closes it without reading. Its words
    // are worth more than the broken pipe, so the answer is read even when the request could not be sent.
    let mut until = Until::new(transport, patience);
    let sent = send(&mut until, request, patience)?;
    let reply = read_message(&mut until).map_err(|error| SessionError::from_codec(error, patience));
    until.lift().map_err(|source| SessionError::Lost { source })?;
    match reply {
        Ok(Some(Reply::Error { code, message })) => Err(SessionError::Refused { code, message }),
        Ok(Some(reply)) => sent.map(|()| reply),
        Ok(None) => sent.and(Err(SessionError::closed())),
        Err(error) => sent.and(Err(error)),
    }
}

/// Sends a request; the inner error is one that an answer can still explain.
pub(crate) fn send(
    until: &mut Until<'_>,
    request: &Request,
    patience: Duration,
) -> Result<Result<(), SessionError>, SessionError> {
    match write_message(until, request) {
        Err(CodecError::TooLong { .. }) => Err(SessionError::RequestTooLong),
        sent => Ok(sent.map_err(|error| SessionError::from_codec(error, patience))),
    }
}

/// How long the interpreter's answer may take. Twice the limit: once for the code of others, once for this; and the agent
/// adds what starting an interpreter takes.
pub(crate) fn warm_patience(timeout_ms: u64) -> Duration {
    REPLY_PATIENCE * 2 + Duration::from_millis(timeout_ms.min(MAX_EVAL_TIMEOUT_MS)) * 2
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use proto::guest::ErrorCode;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn open(answer: &[u8], then_close: bool) -> Result<Connection, SessionError> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(answer).unwrap();
        if then_close {
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
        }
        Connection::open(ours, None, SHORT)
    }

    fn frame(reply: &Reply) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_message(&mut bytes, reply).unwrap();
        bytes
    }

    #[test]
    fn silence_a_closed_door_and_garbage_are_told_apart() {
        assert!(matches!(open(b"", false), Err(SessionError::Timeout { waited: SHORT })));
        assert!(matches!(open(b"", true), Err(SessionError::Lost { .. })));
        assert!(matches!(open(b"SSH-2.0-OpenSSH_9.2\r\n", true), Err(SessionError::Protocol { .. })));
        assert!(matches!(open(&frame(&Reply::Done), true), Err(SessionError::Protocol { .. })));
    }

    #[test]
    fn a_request_that_nobody_takes_ends_with_the_patience() {
        let (mut ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        while ours.write(&[0; 4096]).is_ok() {}
        ours.set_nonblocking(false).unwrap();
        assert!(matches!(Connection::open(ours, None, SHORT), Err(SessionError::Timeout { waited: SHORT })));
    }

    #[test]
    fn a_request_too_long_to_be_sent_is_not_waited_for() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let token = "x".repeat(300 << 10);
        assert!(matches!(Connection::open(ours, Some(&token), SHORT), Err(SessionError::RequestTooLong)));
    }

    #[test]
    fn a_refusal_keeps_its_code_and_words() {
        let answer = Reply::Error { code: ErrorCode::Denied, message: "wrong token".into() };
        let Err(SessionError::Refused { code, message }) = open(&frame(&answer), true) else { panic!("not refused") };
        assert_eq!((code, message.as_str()), (ErrorCode::Denied, "wrong token"));
    }

    #[test]
    fn whoever_waits_is_let_go_from_elsewhere() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let hello = AgentHello { generation: GENERATION, agent: "x".into(), kernel: "x".into(), boot_ms: 0 };
        theirs.write_all(&frame(&Reply::Hello(hello))).unwrap();
        let mut connection = Connection::open(ours, None, SHORT).unwrap();
        let handle = connection.hang_up_handle();
        let waiting = std::thread::spawn(move || connection.ping());
        // Read, so that the request has been made when it is hung up.
        assert!(matches!(read_message(&mut theirs), Ok(Some(Request::Hello { .. }))));
        assert!(matches!(read_message(&mut theirs), Ok(Some(Request::Ping))));
        handle.hang_up();
        assert!(matches!(waiting.join().unwrap(), Err(SessionError::Lost { .. })));
    }

    #[test]
    fn a_generation_nobody_agreed_to_is_refused() {
        for generation in [0, GENERATION + 1] {
            let hello = AgentHello { generation, agent: "x".into(), kernel: "x".into(), boot_ms: 0 };
            assert!(matches!(open(&frame(&Reply::Hello(hello)), true), Err(SessionError::Protocol { .. })));
        }
    }

    #[test]
    fn an_agent_that_is_too_old_is_not_asked() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let hello = AgentHello { generation: 1, agent: "x".into(), kernel: "x".into(), boot_ms: 0 };
        theirs.write_all(&frame(&Reply::Hello(hello))).unwrap();
        let mut connection = Connection::open(ours, None, SHORT).unwrap();
        let request = proto::guest::StatFile { path: "/".parse().unwrap(), user: None };
        let refused = connection.stat_file(&request).unwrap_err();
        assert!(matches!(refused, SessionError::AgentTooOld { generation: 1, needed: 2 }), "{refused:?}");
        drop(connection);
        let mut heard = Vec::new();
        theirs.read_to_end(&mut heard).unwrap();
        let mut heard = &heard[..];
        assert!(matches!(read_message(&mut heard), Ok(Some(Request::Hello { .. }))));
        assert!(heard.is_empty(), "it was sent what it does not know");
    }

    #[test]
    fn the_hello_carries_the_token() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(matches!(Connection::open(ours, Some("secret"), SHORT), Err(SessionError::Lost { .. })));
        let mut bytes = Vec::new();
        theirs.read_to_end(&mut bytes).unwrap();
        let hello: Option<Request> = read_message(&mut &bytes[..]).unwrap();
        assert_eq!(hello, Some(Request::Hello { generation: GENERATION, token: Some("secret".into()) }));
    }
}
