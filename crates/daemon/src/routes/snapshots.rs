//! Snapshots: listed, made, looked at, made one layer of, removed.

use api::{Code, CompactSnapshot, CreateSnapshot, PREFER, REPRESENTATION, Removed, SnapshotDetail, SnapshotInfo};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use engine::{Removal, Store};
use serde::Deserialize;

use super::{Failures, Told};
use crate::body::{ApiJson, ApiQuery, Name};
use crate::booting;
use crate::error::ApiError;
use crate::registry::About;
use crate::snapshots;
use crate::spawn::parse_tag;
use crate::state::App;
use crate::subject::Subject;
use crate::work::Watched;

/// All snapshots, those that are being written and those that failed included.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots",
    responses((status = 200, body = [SnapshotInfo]), Failures))]
pub(super) async fn list(State(app): State<App>) -> Result<ApiJson<Vec<SnapshotInfo>>, ApiError> {
    Ok(ApiJson(app.verb(snapshots::list).await?))
}

/// Boots a VM of a recipe, or of a kernel and a root file system on the daemon's host, warms it up and keeps it.
#[utoipa::path(post, path = "/v1/snapshots", tag = "snapshots", request_body = CreateSnapshot,
    responses((status = 201, body = SnapshotInfo), Told, Failures))]
pub(super) async fn create(
    State(app): State<App>,
    subject: Subject,
    watched: Watched,
    ApiJson(asked): ApiJson<CreateSnapshot>,
) -> Result<Response, ApiError> {
    subject.tag(&asked.tag);
    app.work(watched, StatusCode::CREATED, move |app, job| booting::create(app, asked, job)).await
}

/// All about one snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{tag}/info", tag = "snapshots", params(("tag" = String, Path)),
    responses((status = 200, body = SnapshotDetail), Failures))]
pub(super) async fn info(State(app): State<App>, Name(tag): Name) -> Result<ApiJson<SnapshotDetail>, ApiError> {
    let tag = parse_tag(&tag)?;
    Ok(ApiJson(app.verb(move |app| snapshots::detail(app, &tag)).await?))
}

/// What becomes of those that are made of it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Wanted {
    #[serde(default)]
    cascade: bool,
    #[serde(default)]
    force: bool,
}

/// Removes a snapshot; its sandboxes go on.
#[utoipa::path(delete, path = "/v1/snapshots/{tag}", tag = "snapshots",
    params(
        ("tag" = String, Path),
        ("cascade" = Option<bool>, Query, description = "What is made of it goes, too"),
        ("force" = Option<bool>, Query, description = "What is made of it stays, whole as it is"),
    ),
    responses((status = 204),
        (status = 200, body = Removed, description = "With `Prefer: return=representation`: what was removed"), Failures))]
pub(super) async fn remove(
    State(app): State<App>,
    Name(tag): Name,
    ApiQuery(wanted): ApiQuery<Wanted>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let tag = parse_tag(&tag)?;
    let removal = match (wanted.cascade, wanted.force) {
        (true, true) => return Err(ApiError::invalid("say either cascade or force")),
        (true, false) => Removal::Cascade,
        (false, true) => Removal::Force,
        (false, false) => Removal::Plain,
    };
    let gone = app.verb(move |app| snapshots::remove(app, &tag, removal)).await?;
    let preferred = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    if preferred.flat_map(|value| value.split([',', ';'])).any(|one| one.trim() == REPRESENTATION) {
        let removed = gone.iter().map(ToString::to_string).collect();
        return Ok(ApiJson(Removed { removed }).into_response());
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Makes a snapshot of the same contents that needs no other.
#[utoipa::path(post, path = "/v1/snapshots/{tag}/compact", tag = "snapshots", params(("tag" = String, Path)),
    request_body = CompactSnapshot,
    responses((status = 200, content((SnapshotInfo = "application/json"), (String = "text/event-stream"))), Failures))]
pub(super) async fn compact(
    State(app): State<App>,
    watched: Watched,
    Name(tag): Name,
    ApiJson(asked): ApiJson<CompactSnapshot>,
) -> Result<Response, ApiError> {
    let (from, to) = (parse_tag(&tag)?, parse_tag(&asked.to)?);
    if from == to {
        return Err(ApiError::invalid(format!("`{to}` cannot be made of itself")).with_code(Code::InvalidTag));
    }
    let work = app.work(watched, StatusCode::OK, move |app, job| {
        Store::new(&app.dirs).compact(&from, &to, job.progress())?;
        app.registry.change(|change| change.tell(api::EventKind::SnapshotReady, About::tag(to.as_str())))?;
        snapshots::info(app, &to)
    });
    work.await
}
