//! Commands in a sandbox: to their end, or as a stream.

use std::time::{Duration, Instant};

use api::{ExecRequest, ExecResult, TtySize};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use session::Stdio;

use super::{Failures, sse};
use crate::body::{ApiJson, Name};
use crate::budget::Share;
use crate::error::ApiError;
use crate::guests::CallError;
use crate::running::{Heard, Input, Running, exit_code, not_started};
use crate::state::App;

/// The most of each output that is kept for an answer in one piece.
const MAX_OUTPUT: usize = 8 << 20;
/// The longest time limit: a day.
const MAX_SECS: f64 = 86_400.0;

/// Runs a command in a sandbox. With `stream`, the answer is `text/event-stream`: `started`, `stdout` and `stderr`, then
/// `exit` or `error`. A client that goes away ends the command. What `started` calls its session is its name for those who
/// give it input, signal it, or resize its terminal meanwhile.
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
    let limit = match asked.timeout_secs {
        None if stream => None,
        secs => Some(limit(secs)?),
    };
    let (request, input) = command(asked, limit)?;
    let mut running = Running::start(&app, &id, request, input, limit)?;
    let first = match running.next().await {
        Some(Err(error)) if not_started(&error).is_none() => return Err(error.into()),
        first => first,
    };
    if stream {
        let over = move || app.metrics.exec.record(begun.elapsed().as_secs_f64());
        return Ok(sse::events(first, running, over).into_response());
    }
    let (result, share) = collect(first, running, app.outputs.share()).await?;
    app.metrics.exec.record(begun.elapsed().as_secs_f64());
    answer(&result, share)
}

/// An answer that is counted for as long as it waits for its client: as JSON, which can be many times longer.
pub(super) fn answer<T: Serialize>(result: &T, mut share: Share) -> Result<Response, ApiError> {
    let text = serde_json::to_vec(result).map_err(|error| ApiError::internal(error.to_string()))?;
    share.cover(text.len())?;
    Ok(([(header::CONTENT_TYPE, "application/json")], share.body(text)).into_response())
}

/// A time limit, checked; none is a day.
pub(super) fn limit(timeout_secs: Option<f64>) -> Result<Duration, ApiError> {
    let secs = timeout_secs.unwrap_or(MAX_SECS);
    if secs > 0.0 && secs <= MAX_SECS {
        return Ok(Duration::from_secs_f64(secs));
    }
    Err(ApiError::invalid(format!("timeout_secs is {secs}; it can be up to {MAX_SECS}, and more than 0")))
}

fn command(asked: ExecRequest, limit: Option<Duration>) -> Result<(session::ExecRequest, Input), ApiError> {
    if asked.image_command != asked.args.is_empty() || asked.args.first().is_some_and(String::is_empty) {
        return Err(ApiError::invalid("args is empty; give the program and its arguments, or image_command instead"));
    }
    let stdin = input(asked.stdin, asked.stdin_base64)?;
    if asked.open_stdin && (!asked.stream || stdin.is_some()) {
        return Err(ApiError::invalid("open_stdin needs stream, and neither stdin nor stdin_base64"));
    }
    if asked.tty.is_some() && !asked.open_stdin {
        return Err(ApiError::invalid("tty needs open_stdin"));
    }
    let stdin = stdin.unwrap_or_default();
    let stdio = match asked.tty.map(size).transpose()? {
        Some(size) => Stdio::Tty(size),
        None if asked.open_stdin || !stdin.is_empty() => Stdio::Pipes,
        None => Stdio::Output,
    };
    let request = session::ExecRequest {
        argv: asked.args,
        env: asked.env,
        cwd: asked.cwd,
        user: asked.user,
        timeout_ms: limit.map(milliseconds),
        stdio,
    };
    Ok((request, if asked.open_stdin { Input::Open } else { Input::Whole(stdin) }))
}

/// A terminal's size, checked.
pub(super) fn size(asked: TtySize) -> Result<session::TtySize, ApiError> {
    if asked.rows == 0 || asked.cols == 0 {
        return Err(ApiError::invalid("a terminal has at least one row and one column"));
    }
    Ok(session::TtySize { rows: asked.rows, cols: asked.cols })
}

/// What a command reads, said in one of two ways.
pub(super) fn input(text: Option<String>, base64: Option<String>) -> Result<Option<Vec<u8>>, ApiError> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(ApiError::invalid("give either stdin or stdin_base64")),
        (text, None) => Ok(text.map(String::into_bytes)),
        (None, Some(base64)) => {
            let bytes = STANDARD.decode(base64).map_err(|error| ApiError::invalid(format!("stdin_base64: {error}")))?;
            Ok(Some(bytes))
        }
    }
}

/// A time limit as an agent takes it.
pub(super) fn milliseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// All it says, up to the limit; what is beyond is not kept, and the command goes on.
async fn collect(
    first: Option<Result<Heard, CallError>>,
    mut running: Running,
    mut share: Share,
) -> Result<(ExecResult, Share), ApiError> {
    let (mut stdout, mut stderr) = (Kept::default(), Kept::default());
    let (mut end, mut heard) = (None, first);
    while let Some(next) = heard {
        match next {
            Ok(Heard::Started { .. } | Heard::Skipped(_)) => {}
            Ok(Heard::Stdout(bytes)) => stdout.push(&bytes, &mut share)?,
            Ok(Heard::Stderr(bytes)) => stderr.push(&bytes, &mut share)?,
            Ok(Heard::Exited { status, timed_out }) => end = Some((exit_code(status), timed_out)),
            Err(error) => {
                let (code, message) = not_started(&error).ok_or(error)?;
                stderr.push(format!("{message}\n").as_bytes(), &mut share)?;
                end = Some((code, false));
            }
        }
        heard = running.next().await;
    }
    let (exit_code, timed_out) = end.ok_or_else(|| ApiError::internal("nothing was heard of the command's end"))?;
    let result = ExecResult {
        stdout: text(stdout.bytes),
        stderr: text(stderr.bytes),
        exit_code,
        timed_out,
        stdout_truncated: stdout.truncated,
        stderr_truncated: stderr.truncated,
    };
    Ok((result, share))
}

/// Text as it is; what is none is replaced.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    truncated: bool,
}

impl Kept {
    fn push(&mut self, bytes: &[u8], share: &mut Share) -> Result<(), ApiError> {
        let room = MAX_OUTPUT - self.bytes.len();
        let kept = &bytes[..bytes.len().min(room)];
        share.take(kept.len())?;
        self.bytes.extend_from_slice(kept);
        self.truncated |= bytes.len() > room;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<(session::ExecRequest, Input), ApiError> {
        let asked: ExecRequest = serde_json::from_str(text).unwrap();
        let limit = limit(asked.timeout_secs)?;
        command(asked, Some(limit))
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
            r#"{"args":["x"],"image_command":true}"#,
            r#"{"args":["x"],"open_stdin":true}"#,
            r#"{"args":["x"],"open_stdin":true,"stream":true,"stdin":""}"#,
            r#"{"args":["x"],"stream":true,"tty":{"rows":24,"cols":80}}"#,
            r#"{"args":["x"],"stream":true,"open_stdin":true,"tty":{"rows":0,"cols":80}}"#,
        ] {
            assert_eq!(asked(bad).unwrap_err().status.as_u16(), 400, "{bad}");
        }
        let (request, stdin) = asked(r#"{"args":["cat"],"stdin_base64":"AP8="}"#).unwrap();
        assert!(matches!(stdin, Input::Whole(stdin) if stdin == [0, 255]));
        assert_eq!(request.stdio, Stdio::Pipes);
        assert!(asked(r#"{"args":[],"image_command":true}"#).unwrap().0.argv.is_empty());
        let (request, open) = asked(r#"{"args":["cat"],"stream":true,"open_stdin":true}"#).unwrap();
        assert!(request.stdio == Stdio::Pipes && matches!(open, Input::Open));
        assert_eq!((request.timeout_ms, asked(r#"{"args":["x"]}"#).unwrap().0.stdio), (Some(30_000), Stdio::Output));
    }

    #[test]
    fn an_answer_counts_as_long_as_it_is_and_not_as_what_it_is_made_of() {
        let result = ExecResult { stdout: "\0".repeat(100), ..ExecResult::default() };
        let refused = answer(&result, crate::budget::Budget::new(500).share()).unwrap_err();
        assert_eq!(refused.status.as_u16(), 503);
        let budget = crate::budget::Budget::new(1000);
        let held = answer(&result, budget.share()).unwrap();
        budget.share().take(401).unwrap_err();
        drop(held);
        budget.share().take(1000).unwrap();
    }

    #[test]
    fn an_output_is_cut_where_it_is_too_long_and_counts_what_is_kept() {
        let budget = crate::budget::Budget::new(MAX_OUTPUT + 10);
        let (mut share, mut kept) = (budget.share(), Kept::default());
        kept.push(&vec![b'x'; MAX_OUTPUT - 1], &mut share).unwrap();
        assert!(!kept.truncated);
        kept.push(b"yz", &mut share).unwrap();
        assert!(kept.truncated && kept.bytes.ends_with(b"xy"));
        Kept::default().push(&[0; 11], &mut share).unwrap_err();
        Kept::default().push(&[0; 10], &mut share).unwrap();
    }
}
