//! Commands in a sandbox: to their end, or as a stream.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use api::{Chunk, Encoding, ErrorBody, ExecRequest, ExecResult, Exit, Started};
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use session::{ExitStatus, Stdio};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::Failures;
use crate::body::{ApiJson, Name};
use crate::error::ApiError;
use crate::running::{Heard, Running, exit_code, not_started};
use crate::state::App;

/// The most of each output that is kept for an answer in one piece.
const MAX_OUTPUT: usize = 8 << 20;
/// The longest time limit: a day.
const MAX_SECS: f64 = 86_400.0;
/// How many events may wait for a client.
const BACKLOG: usize = 4;

/// Runs a command in a sandbox. With `stream`, the answer is `text/event-stream`: `started`, `stdout` and `stderr`, then
/// `exit` or `error`. A client that goes away ends the command.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/exec", tag = "sandboxes", params(("id" = String, Path)),
    request_body = ExecRequest,
    responses((status = 200, content((ExecResult = "application/json"), (String = "text/event-stream"))), Failures))]
pub(super) async fn exec(
    State(app): State<App>,
    Name(id): Name,
    ApiJson(asked): ApiJson<ExecRequest>,
) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let stream = asked.stream;
    let limit = limit(asked.timeout_secs)?;
    let (request, stdin) = command(asked, limit)?;
    let child = app.verb(move |app| Ok(app.living(&id)?.1)).await?;
    let running = Running::start(child, request, stdin, limit);
    if stream {
        return Ok(events(running).into_response());
    }
    let result = collect(running).await?;
    app.metrics.exec.record(begun.elapsed().as_secs_f64());
    Ok(ApiJson(result).into_response())
}

/// A time limit, checked; none is a day.
pub(super) fn limit(timeout_secs: Option<f64>) -> Result<Duration, ApiError> {
    let secs = timeout_secs.unwrap_or(MAX_SECS);
    if secs > 0.0 && secs <= MAX_SECS {
        return Ok(Duration::from_secs_f64(secs));
    }
    Err(ApiError::invalid(format!("timeout_secs is {secs}; it can be up to {MAX_SECS}, and more than 0")))
}

fn command(asked: ExecRequest, limit: Duration) -> Result<(session::ExecRequest, Vec<u8>), ApiError> {
    if asked.args.first().is_none_or(String::is_empty) {
        return Err(ApiError::invalid("args is empty; give the program and its arguments"));
    }
    let stdin = match (asked.stdin, asked.stdin_base64) {
        (Some(_), Some(_)) => return Err(ApiError::invalid("give either stdin or stdin_base64")),
        (text, None) => text.unwrap_or_default().into_bytes(),
        (None, Some(base64)) => {
            STANDARD.decode(base64).map_err(|error| ApiError::invalid(format!("stdin_base64: {error}")))?
        }
    };
    let timeout_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1);
    let request = session::ExecRequest {
        argv: asked.args,
        env: asked.env,
        cwd: asked.cwd,
        user: asked.user,
        timeout_ms: Some(timeout_ms),
        stdio: if stdin.is_empty() { Stdio::Output } else { Stdio::Pipes },
    };
    Ok((request, stdin))
}

/// All it says, up to the limit; what is beyond is not kept, and the command goes on.
async fn collect(mut running: Running) -> Result<ExecResult, ApiError> {
    let (mut stdout, mut stderr) = (Kept::default(), Kept::default());
    let mut end = None;
    while let Some(heard) = running.next().await {
        match heard {
            Heard::Started(_) => {}
            Heard::Stdout(bytes) => stdout.push(&bytes),
            Heard::Stderr(bytes) => stderr.push(&bytes),
            Heard::Exited { status, timed_out } => end = Some((exit_code(status), timed_out)),
            Heard::Lost(error) => {
                let (code, message) = not_started(&error).ok_or(error)?;
                stderr.push(format!("{message}\n").as_bytes());
                end = Some((code, false));
            }
        }
    }
    let (exit_code, timed_out) = end.ok_or_else(|| ApiError::internal("nothing was heard of the command's end"))?;
    Ok(ExecResult {
        stdout: String::from_utf8_lossy(&stdout.bytes).into_owned(),
        stderr: String::from_utf8_lossy(&stderr.bytes).into_owned(),
        exit_code,
        timed_out,
        stdout_truncated: stdout.truncated,
        stderr_truncated: stderr.truncated,
    })
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    truncated: bool,
}

impl Kept {
    fn push(&mut self, bytes: &[u8]) {
        let room = MAX_OUTPUT - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.truncated |= bytes.len() > room;
    }
}

/// What it says, as it says it. The command goes with the stream.
fn events(mut running: Running) -> impl IntoResponse {
    let (say, events) = tokio::sync::mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        let (mut stdout, mut stderr) = (Text::default(), Text::default());
        loop {
            // Whoever stops reading may have left while the command says nothing.
            let heard = tokio::select! {
                heard = running.next() => heard,
                () = say.closed() => None,
            };
            let Some(heard) = heard else { return };
            for event in told(heard, &mut stdout, &mut stderr) {
                if say.send(event).await.is_err() {
                    return;
                }
            }
        }
    });
    Sse::new(ReceiverStream::new(events).map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default())
}

fn told(heard: Heard, stdout: &mut Text, stderr: &mut Text) -> Vec<Event> {
    let rest = |stdout: &mut Text, stderr: &mut Text| {
        let rest = [("stdout", stdout.rest()), ("stderr", stderr.rest())];
        rest.into_iter().filter_map(|(name, chunk)| Some(event(name, &chunk?))).collect::<Vec<_>>()
    };
    match heard {
        Heard::Started(pid) => vec![event("started", &Started { process_id: pid.to_string() })],
        Heard::Stdout(bytes) => stdout.take(bytes).map(|chunk| event("stdout", &chunk)).into_iter().collect(),
        Heard::Stderr(bytes) => stderr.take(bytes).map(|chunk| event("stderr", &chunk)).into_iter().collect(),
        Heard::Exited { status, timed_out } => {
            let signal = if let ExitStatus::Signal(signal) = status { Some(signal) } else { None };
            let mut last = rest(stdout, stderr);
            last.push(event("exit", &Exit { exit_code: exit_code(status), signal, timed_out }));
            last
        }
        Heard::Lost(error) => {
            let mut last = rest(stdout, stderr);
            last.push(match not_started(&error) {
                Some((exit_code, _)) => event("exit", &Exit { exit_code, signal: None, timed_out: false }),
                None => event::<ErrorBody>("error", &ApiError::from(error).body()),
            });
            last
        }
    }
}

fn event<T: serde::Serialize>(name: &str, data: &T) -> Event {
    Event::default().event(name).json_data(data).expect("what we say can be written as JSON")
}

/// Output in pieces, cut where a character may be cut, too.
#[derive(Debug, Default)]
struct Text {
    /// The beginning of a character that is still to come.
    open: Vec<u8>,
}

impl Text {
    fn take(&mut self, bytes: Vec<u8>) -> Option<Chunk> {
        let mut all = std::mem::take(&mut self.open);
        all.extend(bytes);
        if let Err(error) = std::str::from_utf8(&all)
            && error.error_len().is_none()
        {
            self.open = all.split_off(error.valid_up_to());
        }
        (!all.is_empty()).then(|| chunk(all))
    }

    fn rest(&mut self) -> Option<Chunk> {
        let rest = std::mem::take(&mut self.open);
        (!rest.is_empty()).then(|| chunk(rest))
    }
}

fn chunk(bytes: Vec<u8>) -> Chunk {
    match String::from_utf8(bytes) {
        Ok(data) => Chunk { data, encoding: Encoding::Utf8 },
        Err(error) => Chunk { data: STANDARD.encode(error.as_bytes()), encoding: Encoding::Base64 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<(session::ExecRequest, Vec<u8>), ApiError> {
        let asked: ExecRequest = serde_json::from_str(text).unwrap();
        let limit = limit(asked.timeout_secs)?;
        command(asked, limit)
    }

    #[test]
    fn a_command_is_checked() {
        for bad in [
            r#"{"args":[]}"#,
            r#"{"args":[""]}"#,
            r#"{"args":["x"],"timeout_secs":0}"#,
            r#"{"args":["x"],"timeout_secs":-1}"#,
            r#"{"args":["x"],"timeout_secs":1e300}"#,
            r#"{"args":["x"],"stdin":"a","stdin_base64":"YQ=="}"#,
            r#"{"args":["x"],"stdin_base64":"%"}"#,
        ] {
            assert_eq!(asked(bad).unwrap_err().status.as_u16(), 400, "{bad}");
        }
        let (request, stdin) = asked(r#"{"args":["cat"],"stdin_base64":"AP8="}"#).unwrap();
        assert_eq!((request.stdio, stdin), (Stdio::Pipes, vec![0, 255]));
        assert_eq!((request.timeout_ms, asked(r#"{"args":["x"]}"#).unwrap().0.stdio), (Some(30_000), Stdio::Output));
    }

    #[test]
    fn a_character_that_comes_in_two_pieces_stays_text() {
        let mut text = Text::default();
        let bytes = "aé€".as_bytes();
        let first = text.take(bytes[..2].to_vec()).unwrap();
        let second = text.take(bytes[2..4].to_vec()).unwrap();
        let third = text.take(bytes[4..].to_vec()).unwrap();
        assert_eq!([&first.data, &second.data, &third.data], ["a", "é", "€"]);
        let binary = text.take(vec![0xff, b'a']).unwrap();
        assert_eq!((binary.encoding, binary.data.as_str()), (Encoding::Base64, "/2E="));
        assert_eq!(text.take(vec![0xc3]), None);
        assert_eq!(text.rest().unwrap().encoding, Encoding::Base64);
    }

    #[test]
    fn what_is_too_much_is_cut_and_said_to_be() {
        let mut kept = Kept::default();
        kept.push(&vec![0; MAX_OUTPUT]);
        assert!(!kept.truncated);
        kept.push(&[1]);
        assert!(kept.truncated && kept.bytes.len() == MAX_OUTPUT);
    }
}
