//! What is stored of all snapshots together: counted, cleared up, compared with what was written.

use api::{Garbage, StoreInfo, Verified, VerifySnapshots};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::Failures;
use crate::body::ApiJson;
use crate::error::ApiError;
use crate::spawn::parse_tag;
use crate::state::App;
use crate::upkeep;
use crate::work::Watched;

/// What all snapshots take; what they share counts once.
#[utoipa::path(get, path = "/v1/store", tag = "store", responses((status = 200, body = StoreInfo), Failures))]
pub(super) async fn info(State(app): State<App>) -> Result<ApiJson<StoreInfo>, ApiError> {
    Ok(ApiJson(app.verb(upkeep::info).await?))
}

/// What no snapshot needs. Nothing is changed.
#[utoipa::path(get, path = "/v1/store/garbage", tag = "store", responses((status = 200, body = Garbage), Failures))]
pub(super) async fn garbage(State(app): State<App>) -> Result<ApiJson<Garbage>, ApiError> {
    Ok(ApiJson(app.verb(|app| upkeep::garbage(app, engine::Garbage::Count)).await?))
}

/// Removes what no snapshot needs, and ends the templates of branches that nobody keeps any more; tells what it was.
#[utoipa::path(delete, path = "/v1/store/garbage", tag = "store", responses((status = 200, body = Garbage), Failures))]
pub(super) async fn collect(State(app): State<App>) -> Result<ApiJson<Garbage>, ApiError> {
    Ok(ApiJson(app.verb(|app| upkeep::garbage(app, engine::Garbage::Remove)).await?))
}

/// Reads all that these snapshots need, every byte of it, and compares it with what was written. Damage is what is found,
/// not an error.
#[utoipa::path(post, path = "/v1/store/verify", tag = "store", request_body = VerifySnapshots,
    responses((status = 200, content((Verified = "application/json"), (String = "text/event-stream"))), Failures))]
pub(super) async fn verify(
    State(app): State<App>,
    watched: Watched,
    ApiJson(asked): ApiJson<VerifySnapshots>,
) -> Result<Response, ApiError> {
    let tags = asked.tags.iter().map(|tag| parse_tag(tag)).collect::<Result<Vec<_>, _>>()?;
    app.work(watched, StatusCode::OK, move |app, job| upkeep::verify(app, &tags, job)).await
}
