//! Servers inside of sandboxes: `/v1/sandboxes/{id}/ports/{port}` and whatever path comes behind it.

use api::ErrorBody;
use axum::extract::{Path, Request, State};
use axum::response::Response;

use super::Failures;
use crate::error::ApiError;
use crate::state::App;

/// A connection to whoever listens on a port of a sandbox, asked for with `Upgrade: tcp`: bytes, as they are.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/ports/{port}", tag = "sandboxes",
    params(("id" = String, Path), ("port" = u16, Path)),
    responses((status = 101, description = "The connection carries bytes from now on"),
        (status = 426, body = ErrorBody), (status = 502, body = ErrorBody), Failures))]
pub(super) async fn connect(State(app): State<App>, target: Target, request: Request) -> Result<Response, ApiError> {
    let (id, port) = read(target)?;
    app.connect_port(&id, port, request).await
}

/// Asks whoever serves HTTP on a port of a sandbox: any method and path, WebSockets too. The answer is that server's,
/// unless it cannot be asked.
#[utoipa::path(method(get, post, put, patch, delete), path = "/v1/sandboxes/{id}/ports/{port}/{path}", tag = "sandboxes",
    params(("id" = String, Path), ("port" = u16, Path), ("path" = String, Path)),
    responses((status = "default", description = "What the server says"), (status = 502, body = ErrorBody), Failures))]
pub(super) async fn ask(State(app): State<App>, target: Target, request: Request) -> Result<Response, ApiError> {
    let (id, port) = read(target)?;
    app.ask_port(&id, port, request).await
}

type Target = Path<std::collections::HashMap<String, String>>;

fn read(Path(mut words): Target) -> Result<(String, u16), ApiError> {
    let mut word = |name: &str| words.remove(name).unwrap_or_default();
    let (id, port) = (word("id"), word("port"));
    let bad = || {
        ApiError::invalid(format!("`{}` is no port; they are 1 to 65535", port.chars().take(20).collect::<String>()))
    };
    let number = port.parse().ok().filter(|number| *number > 0).ok_or_else(bad)?;
    Ok((id, number))
}
