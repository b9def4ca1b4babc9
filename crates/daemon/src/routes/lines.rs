//! The protocol of `10.42.0.2:8888`: `/v1/sandboxes/{id}/lines`.

use axum::extract::{Request, State};
use axum::response::Response;

use crate::body::Name;
use crate::error::ApiError;
use crate::state::App;

/// A line in, a line out.
pub(super) async fn connect(State(app): State<App>, Name(id): Name, request: Request) -> Result<Response, ApiError> {
    app.connect_lines(&id, request).await
}
