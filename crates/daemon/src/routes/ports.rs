//! Servers inside of sandboxes: `/v1/sandboxes/{id}/ports/{port}` and whatever path comes behind it.

use axum::extract::{Path, Request, State};
use axum::response::Response;

use crate::error::ApiError;
use crate::state::App;

/// Bytes, as they are.
pub(super) async fn connect(State(app): State<App>, target: Target, request: Request) -> Result<Response, ApiError> {
    let (id, port) = read(target)?;
    app.connect_port(&id, port, request).await
}

/// HTTP, and what becomes of it.
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
