//! Images: built, as far as that takes a VM.

use api::{BuildImage, BuiltImage};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::{Failures, Told};
use crate::body::ApiJson;
use crate::error::ApiError;
use crate::images;
use crate::state::App;
use crate::work::Watched;

/// Builds the image of a recipe, or runs steps in a VM of a root file system; the disk that they leave is kept.
#[utoipa::path(post, path = "/v1/images", tag = "snapshots", request_body = BuildImage,
    responses((status = 201, body = BuiltImage), Told, Failures))]
pub(super) async fn build(
    State(app): State<App>,
    watched: Watched,
    ApiJson(asked): ApiJson<BuildImage>,
) -> Result<Response, ApiError> {
    app.work(watched, StatusCode::CREATED, move |app, job| images::create(app, asked, job)).await
}
