//! Processes of a sandbox that live on without clients.

use std::time::Duration;

use api::{Code, ProcessInfo, ProcessStatus, SendSignal, StartProcess, TtySize};
use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use session::{Connection, ErrorCode, SessionError, Stdio};

use super::exec::{input, limit, milliseconds, size};
use super::{Failures, sse};
use crate::body::{ApiJson, ApiQuery, Name, NameIn};
use crate::budget::Share;
use crate::error::ApiError;
use crate::guests::{CallError, Talk};
use crate::running::{Running, exit_code, signal_of};
use crate::state::App;

/// How long a process may take to read what it was started with.
const INPUT_LIMIT: Duration = Duration::from_secs(600);

/// A sandbox and a process, as a path names them.
#[derive(Debug)]
pub(super) struct Named {
    sandbox: String,
    process: u64,
}

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let NameIn { sandbox, name } = NameIn::from_request_parts(parts, state).await?;
        let shown: String = name.chars().take(64).collect();
        let missing = |_| ApiError::missing(Code::ProcessNotFound, format!("there is no process `{shown}`"));
        Ok(Self { sandbox, process: name.parse().map_err(missing)? })
    }
}

/// Starts a process that lives on without clients. The last of its output is kept for those who attach later, also after
/// its end.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes", tag = "processes", params(("id" = String, Path)),
    request_body = StartProcess, responses((status = 201, body = ProcessInfo), Failures))]
pub(super) async fn start(
    State(app): State<App>,
    Name(id): Name,
    ApiJson(asked): ApiJson<StartProcess>,
) -> Result<(StatusCode, ApiJson<ProcessInfo>), ApiError> {
    let (request, stdin) = command(asked)?;
    let mut share = app.inputs.share();
    share.take(stdin.as_ref().map_or(0, Vec::len))?;
    let is_fed = stdin.is_some();
    let mut talk = app.talk(&id, move |mut connection, say| {
        let started = connection.start_process(&request)?;
        let process = started.id;
        say.say(started)?;
        stdin.map_or(Ok(()), |stdin| Ok(feed(connection, process, &stdin)?))
    })?;
    let started = talk.next().await.unwrap_or(Err(CallError::Left));
    let started = started.map_err(|error| error.meaning(ApiError::of_program))?;
    if is_fed {
        tokio::spawn(be_fed(talk, share, format!("process {} of {id}", started.id)));
    }
    Ok((StatusCode::CREATED, ApiJson(told(started))))
}

/// Gives a process all of its input.
fn feed(connection: Connection, process: u64, mut stdin: &[u8]) -> Result<(), SessionError> {
    let mut input = connection.feed(process, true)?.with_patience(INPUT_LIMIT);
    while !stdin.is_empty() {
        let sent = input.send(stdin)?;
        stdin = &stdin[sent..];
    }
    input.finish()
}

/// Waits until a process has been given its input, for which its client need not stay.
async fn be_fed(mut talk: Talk<session::ProcessInfo>, _share: Share, who: String) {
    match tokio::time::timeout(INPUT_LIMIT, talk.next()).await {
        Ok(Some(Err(CallError::Guest(SessionError::Refused { code: ErrorCode::Ended, .. })))) => {
            log::debug!("{who} ended before it had read its input");
        }
        Ok(Some(Err(error))) => log::warn!("{who} was not given all of its input: {}", ApiError::from(error)),
        Ok(_) => {}
        Err(_) => log::warn!("{who} did not read its input within {} s, and gets no more", INPUT_LIMIT.as_secs()),
    }
}

fn command(asked: StartProcess) -> Result<(session::ExecRequest, Option<Vec<u8>>), ApiError> {
    if asked.args.first().is_none_or(String::is_empty) {
        return Err(ApiError::invalid("args is empty; give the program and its arguments"));
    }
    let stdin = input(asked.stdin, asked.stdin_base64)?;
    let limit = asked.timeout_secs.map(|secs| limit(Some(secs))).transpose()?;
    let request = session::ExecRequest {
        argv: asked.args,
        env: asked.env,
        cwd: asked.cwd,
        user: asked.user,
        timeout_ms: limit.map(milliseconds),
        stdio: asked.tty.map(size).transpose()?.map_or(Stdio::Pipes, Stdio::Tty),
    };
    Ok((request, stdin))
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are far below the point where this matters")]
fn told(process: session::ProcessInfo) -> ProcessInfo {
    ProcessInfo {
        id: process.id.to_string(),
        args: process.argv,
        cwd: process.cwd,
        user: process.user,
        started_at_unix: process.started_unix_ms as f64 / 1000.0,
        status: if process.status.is_some() { ProcessStatus::Exited } else { ProcessStatus::Running },
        exit_code: process.status.map(exit_code),
        signal: process.status.and_then(signal_of),
        timed_out: process.timed_out,
        tty: process.tty.map(|size| TtySize { rows: size.rows, cols: size.cols }),
        pid: process.pid,
    }
}

/// All processes that were started so and not forgotten, oldest first.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes", tag = "processes", params(("id" = String, Path)),
    responses((status = 200, body = [ProcessInfo]), Failures))]
pub(super) async fn list(State(app): State<App>, Name(id): Name) -> Result<ApiJson<Vec<ProcessInfo>>, ApiError> {
    let all = app.ask(&id, |mut connection| connection.list_processes()).await?;
    Ok(ApiJson(all.into_iter().map(told).collect()))
}

/// One process.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes/{pid}", tag = "processes",
    params(("id" = String, Path), ("pid" = String, Path)),
    responses((status = 200, body = ProcessInfo), Failures))]
pub(super) async fn get(State(app): State<App>, named: Named) -> Result<ApiJson<ProcessInfo>, ApiError> {
    let found = app.ask(&named.sandbox, move |mut connection| connection.show_process(named.process)).await?;
    Ok(ApiJson(told(found)))
}

/// What is kept of a process's output, then what comes, to its end: `started`, `stdout` and `stderr`, then `exit` or
/// `error`; `skipped` where something is not kept any more. Any number of clients may listen, and none holds it up.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes/{pid}/output", tag = "processes",
    params(("id" = String, Path), ("pid" = String, Path)),
    responses((status = 200, body = String, content_type = "text/event-stream"), Failures))]
pub(super) async fn output(State(app): State<App>, named: Named) -> Result<Response, ApiError> {
    let mut running = Running::follow(&app, &named.sandbox, named.process)?;
    match running.next().await {
        Some(Err(error)) => Err(error.into()),
        first => Ok(sse::events(first, running, || {}).into_response()),
    }
}

/// What may be said about input.
#[derive(Debug, Deserialize)]
pub(super) struct Feed {
    #[serde(default)]
    pub(super) close: bool,
}

/// A signal's number.
pub(super) fn number(asked: &SendSignal) -> Result<i32, ApiError> {
    let unknown = || ApiError::invalid("there is no such signal; give a number, or a name such as TERM");
    asked.signal.number().ok_or_else(unknown)
}

/// Input for a process: the body as it is, however long. `close` ends its input after that, also after a body that breaks
/// off. Answered when the process has been given all of it; one that takes nothing for a minute is `process_not_reading`,
/// and the answer says how much it has.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{pid}/stdin", tag = "processes",
    params(("id" = String, Path), ("pid" = String, Path), ("close" = Option<bool>, Query)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204), Failures))]
pub(super) async fn stdin(
    State(app): State<App>,
    named: Named,
    ApiQuery(asked): ApiQuery<Feed>,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let open = move |connection: Connection| connection.feed(named.process, asked.close);
    app.upload(&named.sandbox, body, open).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a signal to a process and all of its group.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{pid}/signal", tag = "processes",
    params(("id" = String, Path), ("pid" = String, Path)), request_body = SendSignal,
    responses((status = 204), Failures))]
pub(super) async fn signal(
    State(app): State<App>,
    named: Named,
    ApiJson(asked): ApiJson<SendSignal>,
) -> Result<StatusCode, ApiError> {
    let signal = number(&asked)?;
    done(&app, &named.sandbox, move |mut connection| connection.signal_process(named.process, signal)).await
}

/// Tells a process's terminal a new size.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{pid}/resize", tag = "processes",
    params(("id" = String, Path), ("pid" = String, Path)), request_body = TtySize,
    responses((status = 204), Failures))]
pub(super) async fn resize(
    State(app): State<App>,
    named: Named,
    ApiJson(asked): ApiJson<TtySize>,
) -> Result<StatusCode, ApiError> {
    let size = size(asked)?;
    done(&app, &named.sandbox, move |mut connection| connection.resize_process(named.process, size)).await
}

/// Kills a process and all of its group, if it runs, and forgets it.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/processes/{pid}", tag = "processes",
    params(("id" = String, Path), ("pid" = String, Path)), responses((status = 204), Failures))]
pub(super) async fn remove(State(app): State<App>, named: Named) -> Result<StatusCode, ApiError> {
    done(&app, &named.sandbox, move |mut connection| connection.forget_process(named.process)).await
}

async fn done(
    app: &App,
    id: &str,
    work: impl FnOnce(Connection) -> Result<(), SessionError> + Send + 'static,
) -> Result<StatusCode, ApiError> {
    app.ask(id, work).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<(session::ExecRequest, Option<Vec<u8>>), ApiError> {
        command(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_process_is_checked_and_may_run_for_ever() {
        for bad in [
            r#"{"args":[]}"#,
            r#"{"args":["x"],"timeout_secs":0}"#,
            r#"{"args":["x"],"tty":{"rows":0,"cols":80}}"#,
            r#"{"args":["x"],"stdin":"a","stdin_base64":"YQ=="}"#,
        ] {
            assert_eq!(asked(bad).unwrap_err().status.as_u16(), 400, "{bad}");
        }
        let (request, stdin) = asked(r#"{"args":["x"],"stdin":""}"#).unwrap();
        assert_eq!((request.timeout_ms, request.stdio, stdin), (None, Stdio::Pipes, Some(vec![])));
        let (request, _) = asked(r#"{"args":["x"],"timeout_secs":1.5,"tty":{"rows":24,"cols":80}}"#).unwrap();
        assert_eq!(
            (request.timeout_ms, request.stdio),
            (Some(1500), Stdio::Tty(session::TtySize { rows: 24, cols: 80 }))
        );
    }
}
