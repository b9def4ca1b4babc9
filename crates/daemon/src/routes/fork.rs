//! A snapshot forked: many sandboxes at once, and how long each took.

use std::convert::Infallible;

use api::{ForkSnapshot, Forked};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use engine::Cancel;
use tokio::sync::oneshot;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::Failures;
use crate::body::{ApiJson, Name};
use crate::error::ApiError;
use crate::forking::{Attached, spawn_of};
use crate::running::is_stopping;
use crate::spawn::parse_tag;
use crate::state::App;
use crate::subject::Subject;

/// Forks a snapshot, and tells of each sandbox how long it took. They are ready when this is answered; a client that leaves
/// before that leaves none behind. With `attached` the answer is `text/event-stream`: `forked`, and then nothing for as long
/// as the sandboxes shall live; they end with the stream, whatever ends it, and also when the daemon ends.
#[utoipa::path(post, path = "/v1/snapshots/{tag}/fork", tag = "sandboxes", params(("tag" = String, Path)),
    request_body = ForkSnapshot,
    responses(
        (status = 201, content((Forked = "application/json"), (String = "text/event-stream"))),
        Failures
    ))]
pub(super) async fn fork(
    State(app): State<App>,
    subject: Subject,
    Name(tag): Name,
    ApiJson(asked): ApiJson<ForkSnapshot>,
) -> Result<Response, ApiError> {
    let tag = parse_tag(&tag)?;
    let attached = asked.attached;
    let cancel = Cancel::new().map_err(|error| ApiError::internal(error.to_string()))?;
    let spawn = spawn_of(tag, asked, cancel.clone())?;
    let leaving = CalledOff(Some(cancel));
    let (tell, told) = oneshot::channel();
    let work = app.clone();
    tokio::task::spawn_blocking(move || {
        let made = work.spawn(spawn, |_, _| Ok(())).map(|made| Attached::new(work.clone(), made));
        // Nobody listens any more: they are ended with what is dropped here.
        drop(tell.send(made.map(|attached| (attached.told(), attached))));
    });
    let broken = |_| ApiError::internal("it failed in an unforeseen way");
    let (forked, made) = told.await.map_err(broken)??;
    leaving.stay();
    subject.sandboxes(forked.sandboxes.iter().map(|one| one.sandbox.id.as_str()));
    if attached {
        return Ok((StatusCode::CREATED, stream(&app, &forked, made)).into_response());
    }
    made.detach();
    Ok((StatusCode::CREATED, ApiJson(forked)).into_response())
}

/// Calls a fork off whose client leaves.
struct CalledOff(Option<Cancel>);

impl CalledOff {
    fn stay(mut self) {
        self.0.take();
    }
}

impl Drop for CalledOff {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take() {
            cancel.cancel();
        }
    }
}

/// What was made, then silence until the client leaves or the daemon is about to end.
fn stream(app: &App, forked: &Forked, made: Attached) -> impl IntoResponse {
    let first = Event::default().event("forked").json_data(forked).expect("what we say can be written as JSON");
    let mut stopping = app.stopping.subscribe();
    let (say, events) = tokio::sync::mpsc::channel(2);
    tokio::spawn(async move {
        let _made = made;
        if say.send(first).await.is_err() {
            return;
        }
        tokio::select! {
            () = say.closed() => {}
            () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => {
                let last = Event::default().event("error").json_data(is_stopping().body());
                // A client that has left needs no word.
                drop(say.send(last.expect("what we say can be written as JSON")).await);
            }
        }
    });
    Sse::new(ReceiverStream::new(events).map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default())
}
