//! The protocol of `10.42.0.2:8888`, which published clients speak to a sandbox: one line of JSON asks, one answers, and the
//! connection is over.
//!
//! ```text
//! {"action":"ping"}                                  {"pong":true,"numpy_version","pid","agent_lang","warmup_ready"}
//! {"action":"exec","args":[...],"timeout":30}        {"stdout","stderr","exit_code"}
//! {"action":"eval","code":"..."}                     {"result","exit_code"}
//! {"action":"stream","args":[...],"cwd","pty":true}  many lines: see the module `stream`
//! anything else, and whatever fails                  {"error","exit_code":1}
//! ```
//!
//! Whoever serves it has a [`Connection`] to the agent and speaks for the client ([`serve`]); [`ask`] is the client. The
//! client proves nothing, so who may connect is decided by whoever listens. It is bounded in what it may say and for how
//! long, and in what is kept for it.

mod ask;
mod stream;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::time::Duration;

use proto::codec::MAX_PAYLOAD;
use proto::guest::{EvalError, EvalRequest, ExecRequest, ExitStatus, Stdio};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::transport::Until;
use crate::{Connection, Event, SessionError, Transport};

pub use ask::{AskError, ask};

/// The port of it.
pub const PORT: u16 = 8888;
/// The longest line of a client: what an agent takes as one request.
pub const MAX_LINE: usize = MAX_PAYLOAD;
/// The most of each output of a command that is kept for the answer.
pub const MAX_OUTPUT: usize = 4 << 20;
/// How much is read at once.
const PIECE: usize = 8 << 10;
/// How long a client may take to ask.
const ASKING: Duration = Duration::from_secs(10);
/// How long it may take to listen to what it asked for.
const LISTENING: Duration = Duration::from_secs(60);
/// How long it may take to hang up after that, and how much may still come from it meanwhile.
const PARTING: Duration = Duration::from_secs(1);
const MAX_LEFT: u64 = 1 << 20;
/// What a command or code may take when nobody says, and the most.
const USUAL: Duration = Duration::from_secs(30);
const MOST: Duration = Duration::from_secs(86_400);

/// Serves one client to its end. `numpy` says which version of it the guest has.
///
/// # Errors
/// When the client does not ask in time, or does not listen. What fails in the guest is the client's answer.
pub fn serve(client: &Transport, mut connection: Connection, numpy: impl FnOnce() -> String) -> io::Result<()> {
    client.prepare()?;
    let mut lines = Lines::new(client);
    let answer = match lines.next(ASKING)?.as_deref().map(Asked::read) {
        None => return Ok(()),
        Some(Err(words)) => Ok(failure(&words)),
        Some(Ok(Asked::Ping)) => ping(&mut connection, numpy),
        Some(Ok(Asked::Exec(asked))) => exec(connection, asked),
        Some(Ok(Asked::Eval(asked))) => eval(&mut connection, asked),
        Some(Ok(Asked::Stream(asked))) => stream::serve(client, &mut lines, connection, asked),
    };
    say(client, &answer.unwrap_or_else(|error| failure(&error)))?;
    part(client)
}

fn failure(why: &impl ToString) -> Value {
    json!({ "error": why.to_string(), "exit_code": 1 })
}

/// One line to the client.
fn say(client: &Transport, what: &Value) -> io::Result<()> {
    let mut until = Until::new(client, LISTENING);
    until.write_all(format!("{what}\n").as_bytes())?;
    until.lift()
}

/// There is no more. What the client still sends is read, because closing before would take the answer with it.
fn part(client: &Transport) -> io::Result<()> {
    client.end()?;
    match io::copy(&mut Until::new(client, PARTING).take(MAX_LEFT), &mut io::sink()) {
        // It stays, or is gone already: the connection is closed next.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// What a client says, line by line.
struct Lines<'a> {
    client: &'a Transport,
    /// What has come of lines that nobody has asked for yet.
    ahead: Vec<u8>,
}

impl<'a> Lines<'a> {
    const fn new(client: &'a Transport) -> Self {
        Self { client, ahead: Vec::new() }
    }

    /// The next; `None` when there is none. The last may have no end.
    fn next(&mut self, patience: Duration) -> io::Result<Option<Vec<u8>>> {
        let mut until = Until::new(self.client, patience);
        let mut piece = [0; PIECE];
        loop {
            if let Some(end) = self.ahead.iter().position(|byte| *byte == b'\n') {
                let rest = self.ahead.split_off(end + 1);
                return until.lift().map(|()| Some(std::mem::replace(&mut self.ahead, rest)));
            }
            if self.ahead.len() > MAX_LINE {
                let words = format!("a line of more than {MAX_LINE} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, words));
            }
            match until.read(&mut piece) {
                Ok(0) => {
                    return until
                        .lift()
                        .map(|()| Some(std::mem::take(&mut self.ahead)).filter(|last| !last.is_empty()));
                }
                Ok(count) => self.ahead.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What a client asks for.
enum Asked {
    Ping,
    Exec(AskedExec),
    Eval(AskedEval),
    Stream(AskedStream),
}

#[derive(Deserialize)]
struct AskedExec {
    args: Vec<String>,
    #[serde(default = "usual")]
    timeout: Option<f64>,
}

#[derive(Deserialize)]
struct AskedEval {
    code: String,
    #[serde(default = "usual")]
    timeout: Option<f64>,
}

#[derive(Deserialize)]
struct AskedStream {
    args: Vec<String>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    pty: bool,
}

const fn usual() -> Option<f64> {
    Some(USUAL.as_secs_f64())
}

impl Asked {
    /// What is no UTF-8 is replaced.
    fn read(line: &[u8]) -> Result<Self, String> {
        let unclear = |error: serde_json::Error| error.to_string();
        let value: Value = serde_json::from_str(&String::from_utf8_lossy(line)).map_err(unclear)?;
        let action = value.get("action").and_then(Value::as_str).unwrap_or_default().to_owned();
        match action.as_str() {
            "ping" => Ok(Self::Ping),
            "exec" => serde_json::from_value(value).map(Self::Exec).map_err(unclear),
            "eval" => serde_json::from_value(value).map(Self::Eval).map_err(unclear),
            "stream" => serde_json::from_value(value).map(Self::Stream).map_err(unclear),
            _ => Err(format!("unknown action: {}", action.chars().take(64).collect::<String>())),
        }
    }
}

/// A time limit as an agent takes it; none is the most.
fn milliseconds(secs: Option<f64>) -> u64 {
    let limit = secs.map_or(MOST, |secs| Duration::try_from_secs_f64(secs).unwrap_or(MOST).min(MOST));
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// The code of Python's `subprocess`.
const fn exit_code(status: ExitStatus) -> i32 {
    match status {
        ExitStatus::Code(code) => code,
        ExitStatus::Signal(signal) => -signal,
    }
}

fn ping(connection: &mut Connection, numpy: impl FnOnce() -> String) -> Result<Value, SessionError> {
    connection.ping()?;
    Ok(json!({ "pong": true, "numpy_version": numpy(), "pid": 1, "agent_lang": "python", "warmup_ready": true }))
}

fn exec(connection: Connection, asked: AskedExec) -> Result<Value, SessionError> {
    let timeout_ms = milliseconds(asked.timeout);
    let request = ExecRequest {
        argv: named(asked.args),
        timeout_ms: Some(timeout_ms),
        stdio: Stdio::Output,
        ..ExecRequest::default()
    };
    let mut exec = connection.exec(&request)?;
    let (mut stdout, mut stderr) = (Kept::default(), Kept::default());
    loop {
        match exec.next_event()? {
            Event::Stdout(bytes) => stdout.add(&bytes),
            Event::Stderr(bytes) => stderr.add(&bytes),
            Event::Exited { timed_out: true, .. } => {
                let mut answer = failure(&format!("the command did not end within {timeout_ms} ms and was killed"));
                answer["timed_out"] = true.into();
                return Ok(answer);
            }
            Event::Exited { status, .. } => {
                return Ok(json!({
                    "stdout": stdout.text(), "stderr": stderr.text(), "exit_code": exit_code(status),
                    "stdout_truncated": stdout.truncated, "stderr_truncated": stderr.truncated,
                }));
            }
        }
    }
}

/// Nothing at all is not the image's own command: nobody who speaks this protocol means that.
fn named(args: Vec<String>) -> Vec<String> {
    if args.is_empty() { vec![String::new()] } else { args }
}

/// Code may end in an error, which is said beside what became of it.
fn eval(connection: &mut Connection, asked: AskedEval) -> Result<Value, SessionError> {
    let request = EvalRequest { code: asked.code, timeout_ms: milliseconds(asked.timeout) };
    let evaluation = connection.eval(&request)?;
    let mut answer = match &evaluation.error {
        None => json!({ "result": evaluation.value, "exit_code": 0 }),
        Some(error) => failure(error),
    };
    match evaluation.error {
        Some(EvalError::Exception(exception)) => answer["traceback"] = exception.traceback.into(),
        Some(EvalError::Timeout { traceback: Some(traceback) }) => answer["traceback"] = traceback.into(),
        _ => {}
    }
    for (name, bytes) in [("stdout", &evaluation.stdout), ("stderr", &evaluation.stderr)] {
        answer[name] = String::from_utf8_lossy(bytes).into();
    }
    Ok(answer)
}

/// The beginning of an output.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    truncated: bool,
}

impl Kept {
    fn add(&mut self, bytes: &[u8]) {
        let room = MAX_OUTPUT - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.truncated |= bytes.len() > room;
    }

    fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }
}
