//! Everything that changes, as it changes.

use std::convert::Infallible;
use std::sync::Arc;

use api::Event;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{self, KeepAlive, Sse};
use serde::Deserialize;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::Failures;
use crate::body::ApiQuery;
use crate::error::ApiError;
use crate::state::App;

/// How many are read from the registry at once.
const PAGE: usize = 500;
/// How many may wait for a client.
const BACKLOG: usize = 64;

/// Since when.
#[derive(Debug, Deserialize)]
pub(super) struct Since {
    since: Option<i64>,
}

/// Everything that changes, as `text/event-stream`. With `since`, or the header `Last-Event-ID`, what is kept of what came
/// after that is sent first.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(("since" = Option<i64>, Query)),
    responses((status = 200, content((Event = "text/event-stream"))), Failures))]
pub(super) async fn events(
    State(app): State<App>,
    headers: HeaderMap,
    ApiQuery(query): ApiQuery<Since>,
) -> Result<impl IntoResponse, ApiError> {
    let header = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    // Before the registry is looked at, so that nothing falls in between.
    let live = app.registry.listen();
    let last = app.verb(|app| Ok(app.registry.last_event()?)).await?;
    // An id that is yet to come is of a registry that was there before this one: what comes from now on is new.
    let since = query.since.or(header).map_or(last, |since| since.min(last));
    let (say, events) = mpsc::channel(BACKLOG);
    tokio::spawn(async move { tell(app, live, since, say).await });
    Ok(Sse::new(ReceiverStream::new(events).map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default()))
}

/// First what is kept, then what comes; whoever falls behind gets what is kept again.
async fn tell(app: App, mut live: broadcast::Receiver<Arc<Event>>, mut last: i64, say: mpsc::Sender<sse::Event>) {
    let mut stopping = app.stopping.subscribe();
    let mut behind = true;
    loop {
        if behind {
            let from = last;
            let Ok(kept) = app.verb(move |app| Ok(app.registry.events_since(from, PAGE)?)).await else { return };
            behind = kept.len() == PAGE;
            for event in kept {
                last = event.id;
                if say.send(written(&event)).await.is_err() {
                    return;
                }
            }
            continue;
        }
        let next = tokio::select! {
            next = live.recv() => next,
            () = say.closed() => return,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        match next {
            Ok(event) if event.id > last => {
                last = event.id;
                if say.send(written(&event)).await.is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(broadcast::error::RecvError::Lagged(_)) => behind = true,
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

fn written(event: &Event) -> sse::Event {
    let told = sse::Event::default().id(event.id.to_string()).event(event.kind.as_str());
    told.json_data(event).expect("an event can be written as JSON")
}
