//! The protocol of `10.42.0.2:8888`: `/v1/sandboxes/{id}/lines`.

use api::ErrorBody;
use axum::extract::{Request, State};
use axum::response::Response;

use super::Failures;
use crate::body::Name;
use crate::error::ApiError;
use crate::state::App;

/// The protocol of `10.42.0.2:8888`, asked for with `Upgrade: tcp`: a line of JSON in, a line out.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/lines", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 101, description = "The connection carries lines from now on"),
        (status = 426, body = ErrorBody), Failures))]
pub(super) async fn connect(State(app): State<App>, Name(id): Name, request: Request) -> Result<Response, ApiError> {
    app.connect_lines(&id, request).await
}
