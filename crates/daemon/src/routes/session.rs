//! A command that somebody follows: its input, its signals, its terminal.

use api::{SendSignal, TtySize};
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;

use super::Failures;
use super::exec::size;
use super::processes::{Feed, number};
use crate::body::{ApiJson, ApiQuery, NameIn};
use crate::error::ApiError;
use crate::state::App;

/// Input for a command that was started with `open_stdin`: the body as it comes, for as long as the command takes it.
/// `close` ends its input after that, also after a body that breaks off. Answered when the command has been given all of it.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/exec/{session}/stdin", tag = "sandboxes",
    params(("id" = String, Path), ("session" = String, Path), ("close" = Option<bool>, Query)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204), Failures))]
pub(super) async fn stdin(
    State(app): State<App>,
    named: NameIn,
    ApiQuery(asked): ApiQuery<Feed>,
    body: Body,
) -> Result<StatusCode, ApiError> {
    app.feed(&named.sandbox, &named.name, body, asked.close).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a signal to a command and all of its group.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/exec/{session}/signal", tag = "sandboxes",
    params(("id" = String, Path), ("session" = String, Path)), request_body = SendSignal,
    responses((status = 204), Failures))]
pub(super) async fn signal(
    State(app): State<App>,
    named: NameIn,
    ApiJson(asked): ApiJson<SendSignal>,
) -> Result<StatusCode, ApiError> {
    let signal = number(&asked)?;
    app.control(&named.sandbox, &named.name, move |control| control.signal(signal)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Tells a command's terminal a new size.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/exec/{session}/resize", tag = "sandboxes",
    params(("id" = String, Path), ("session" = String, Path)), request_body = TtySize,
    responses((status = 204), Failures))]
pub(super) async fn resize(
    State(app): State<App>,
    named: NameIn,
    ApiJson(asked): ApiJson<TtySize>,
) -> Result<StatusCode, ApiError> {
    let size = size(asked)?;
    app.control(&named.sandbox, &named.name, move |control| control.resize(size)).await?;
    Ok(StatusCode::NO_CONTENT)
}
