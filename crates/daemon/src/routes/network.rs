//! A sandbox's network: looked at, opened and closed.

use api::{NetworkInfo, SetEgress};
use axum::extract::State;

use super::Failures;
use crate::body::{ApiJson, Name};
use crate::error::ApiError;
use crate::state::App;

/// What a sandbox may reach, what it did, and what it was refused.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/net", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = NetworkInfo), Failures))]
pub(super) async fn get(State(app): State<App>, Name(id): Name) -> Result<ApiJson<NetworkInfo>, ApiError> {
    Ok(ApiJson(app.verb(move |app| app.network(&id)).await?))
}

/// Changes what a sandbox may reach, and how much of it, from its next packet on. Connections that are no longer allowed
/// are cut.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/egress", tag = "sandboxes", params(("id" = String, Path)),
    request_body = SetEgress, responses((status = 200, body = NetworkInfo), Failures))]
pub(super) async fn set_egress(
    State(app): State<App>,
    Name(id): Name,
    ApiJson(asked): ApiJson<SetEgress>,
) -> Result<ApiJson<NetworkInfo>, ApiError> {
    Ok(ApiJson(app.verb(move |app| app.set_egress(&id, &asked)).await?))
}
