//! A command whose client listens while it runs.
//!
//! ```text
//! {"action":"stream","args":[...],"cwd":"/","pty":true}   ->
//!                                                         <-   {"stream":"started","pid":7,"pty":true}
//! {"in":"..."}   {"action":"stop"}                        ->
//!                                                         <-   {"out":"..."} ...
//!                                                         <-   {"exit_code":0}
//! ```
//!
//! A client that ends its half has no more input to give and is listened to no longer; one that does not take what it is
//! told has left, and the command is ended.

use std::io::Write;
use std::thread;
use std::time::Duration;

use proto::guest::{ExecRequest, Stdio, TtySize};
use serde_json::{Value, json};

use super::{AskedStream, Lines, exit_code, named, say};
use crate::{Connection, Event, Exec, ExecControl, SessionError, StdinWriter, Transport};

/// What a terminal is that nobody gave a size.
const SIZE: TtySize = TtySize { rows: 24, cols: 80 };
/// How long a client may have nothing to say: as long as the command takes.
const FOR_EVER: Duration = Duration::MAX;
const SIGKILL: i32 = 9;

/// Runs it; the last line.
pub(super) fn serve(
    client: &Transport,
    lines: &mut Lines<'_>,
    connection: Connection,
    asked: AskedStream,
) -> Result<Value, SessionError> {
    let stdio = if asked.pty { Stdio::Tty(SIZE) } else { Stdio::Pipes };
    let request = ExecRequest { argv: named(asked.args), cwd: asked.cwd, stdio, ..ExecRequest::default() };
    let mut exec = connection.exec(&request)?;
    let (stdin, control) = (exec.stdin(), exec.control());
    let lost = |source| SessionError::Lost { source };
    say(client, &json!({ "stream": "started", "pid": exec.pid, "pty": asked.pty })).map_err(lost)?;
    thread::scope(|scope| {
        let heeding = thread::Builder::new().name("lines".into());
        heeding.spawn_scoped(scope, move || heed(lines, stdin, &control)).map_err(lost)?;
        let last = tell(client, &mut exec);
        // Whoever waits for the command to take its input, or for the client to say something, is let go.
        drop(exec);
        client.end_reading().map_err(lost)?;
        last
    })
}

/// Passes on what the client says, until it says no more.
fn heed(lines: &mut Lines<'_>, mut stdin: StdinWriter, control: &ExecControl) {
    while let Ok(Some(line)) = lines.next(FOR_EVER) {
        let value: Value = serde_json::from_slice(&line).unwrap_or_default();
        if value["action"] == "stop" {
            // One that has just ended needs no ending.
            drop(control.signal(SIGKILL));
        }
        let Some(text) = value["in"].as_str() else { continue };
        if stdin.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
    // A command that has ended takes no end of its input any more.
    drop(stdin.close());
}

/// Tells the client what the command does, until it ends.
fn tell(client: &Transport, exec: &mut Exec) -> Result<Value, SessionError> {
    let tell = |text: String| match text.as_str() {
        "" => Ok(()),
        text => say(client, &json!({ "out": text })).map_err(|source| SessionError::Lost { source }),
    };
    let mut texts = [Text::default(), Text::default()];
    loop {
        match exec.next_event()? {
            Event::Stdout(bytes) => tell(texts[0].push(&bytes))?,
            Event::Stderr(bytes) => tell(texts[1].push(&bytes))?,
            Event::Exited { status, .. } => {
                texts.into_iter().map(Text::finish).try_for_each(tell)?;
                return Ok(json!({ "exit_code": exit_code(status) }));
            }
        }
    }
}

/// Text that comes in pieces, which may end inside of a character.
#[derive(Default)]
pub(super) struct Text {
    /// The beginning of a character.
    begun: Vec<u8>,
}

impl Text {
    /// All that is whole; what is no text is replaced.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut said = String::new();
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            said.push_str(chunk.valid());
            if chunks.peek().is_none() && is_begun(chunk.invalid()) {
                self.begun = chunk.invalid().to_vec();
            } else if !chunk.invalid().is_empty() {
                said.push(char::REPLACEMENT_CHARACTER);
            }
        }
        said
    }

    /// What never became a character.
    pub(super) fn finish(self) -> String {
        String::from_utf8_lossy(&self.begun).into_owned()
    }
}

/// Whether more bytes could make a character of these.
fn is_begun(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
