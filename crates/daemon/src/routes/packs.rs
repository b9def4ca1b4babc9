//! Packs: snapshots with all they are made of, in one file.

use api::{PullPack, PushPack, Pushed, Unpacked, Watch};
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::Store;
use pack::PackSpec;
use serde::Deserialize;

use super::{Failures, Told};
use crate::body::{ApiJson, ApiQuery, Name};
use crate::error::ApiError;
use crate::packs::{self, Unpacking};
use crate::spawn::parse_tag;
use crate::state::App;
use crate::subject::Subject;
use crate::work::Watched;

/// What a pack says about itself.
#[derive(Debug, Deserialize)]
pub(super) struct Words {
    description: Option<String>,
    base_image: Option<String>,
    watch: Option<String>,
}

/// A snapshot and all it is made of in one file, for another host. It is checked before anything is sent; what breaks off
/// was not all of it.
#[utoipa::path(get, path = "/v1/snapshots/{tag}/pack", tag = "packs",
    params(
        ("tag" = String, Path),
        ("description" = Option<String>, Query, description = "A word on it, for who unpacks it"),
        ("base_image" = Option<String>, Query, description = "What it was built from; its recipe when absent"),
        ("watch" = Option<String>, Query, description = "The name that `GET /v1/packs/progress` gave"),
    ),
    responses((status = 200, body = Vec<u8>, content_type = "application/zstd"), Failures))]
pub(super) async fn pack(
    State(app): State<App>,
    Name(tag): Name,
    ApiQuery(words): ApiQuery<Words>,
) -> Result<Response, ApiError> {
    let Words { description, base_image, watch } = words;
    // First of all: whoever watches is told when there is nothing to watch.
    let work = app.watches.begin(watch.as_deref())?;
    let spec = PackSpec { tag: parse_tag(&tag)?, description, base_image };
    let room = app.packs.enter()?;
    let body = packs::pipe_out(&app, move |app, to| {
        let _room = room;
        let left = to.left();
        let cancelled = || left() || *app.stopping.borrow();
        let packed = pack::pack(&Store::new(&app.dirs), &spec, to, work.progress(), &cancelled);
        packed.map(drop).map_err(|error| app.unless_stopping(error.into()))
    });
    Ok(([(header::CONTENT_TYPE, "application/zstd")], body.await?).into_response())
}

/// What may be said about a pack that is unpacked.
#[derive(Debug, Deserialize)]
pub(super) struct How {
    tag: Option<String>,
    #[serde(default)]
    force: bool,
    watch: Option<String>,
}

/// Takes a pack: the body as it is, however long. Whether it can be used here is known before anything is written,
/// everything in it is checked, and what is refused or breaks off changes nothing. The answer has all snapshots of the
/// pack, the one that it is of last.
#[utoipa::path(post, path = "/v1/packs", tag = "packs",
    params(
        ("tag" = Option<String>, Query, description = "What the snapshot shall be called"),
        ("force" = Option<bool>, Query,
            description = "It takes the place of other snapshots that have the name of one in the pack"),
        ("watch" = Option<String>, Query, description = "The name that `GET /v1/packs/progress` gave"),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = [Unpacked]), Failures))]
pub(super) async fn unpack(
    State(app): State<App>,
    subject: Subject,
    ApiQuery(how): ApiQuery<How>,
    body: Body,
) -> Result<(StatusCode, ApiJson<Vec<Unpacked>>), ApiError> {
    let work = app.watches.begin(how.watch.as_deref())?;
    let how = Unpacking::new(how.tag.as_deref(), how.force)?;
    let room = app.packs.enter()?;
    let unpacked = packs::pipe_in(&app, body, move |app, from| {
        let _room = room;
        let cancelled = || *app.stopping.borrow();
        how.unpack(app, from, work.progress(), &cancelled).map_err(|error| app.unless_stopping(error))
    });
    let unpacked = unpacked.await?;
    if let Some(last) = unpacked.last() {
        subject.tag(&last.tag);
    }
    Ok((StatusCode::CREATED, ApiJson(unpacked)))
}

/// Tells how far the next pack is that comes or goes with the name that the first event, `watch`, has: `progress` events to
/// its end.
#[utoipa::path(get, path = "/v1/packs/progress", tag = "packs",
    responses((status = 200, content((Watch = "text/event-stream"))), Failures))]
pub(super) async fn progress(State(app): State<App>) -> Result<impl IntoResponse, ApiError> {
    app.watch()
}

/// Has the daemon get a pack from a server, and takes it. What came of it in part is kept, and the next pull of the same
/// address goes on from there.
#[utoipa::path(post, path = "/v1/packs/pull", tag = "packs", request_body = PullPack,
    responses((status = 201, body = [Unpacked]), Told, Failures))]
pub(super) async fn pull(
    State(app): State<App>,
    subject: Subject,
    watched: Watched,
    ApiJson(asked): ApiJson<PullPack>,
) -> Result<Response, ApiError> {
    let work = app.work(watched, StatusCode::CREATED, move |app, job| {
        let pulled = packs::pull(app, &asked, job)?;
        if let Some(last) = pulled.last() {
            subject.tag(&last.tag);
        }
        Ok(pulled)
    });
    work.await
}

/// Has the daemon pack a snapshot and hand it to a server, in one PUT request.
#[utoipa::path(post, path = "/v1/snapshots/{tag}/push", tag = "packs", params(("tag" = String, Path)),
    request_body = PushPack,
    responses((status = 200, content((Pushed = "application/json"), (String = "text/event-stream"))), Failures))]
pub(super) async fn push(
    State(app): State<App>,
    watched: Watched,
    Name(tag): Name,
    ApiJson(asked): ApiJson<PushPack>,
) -> Result<Response, ApiError> {
    let tag = parse_tag(&tag)?;
    app.work(watched, StatusCode::OK, move |app, job| packs::push(app, tag, asked, job)).await
}
