//! Work under way as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use api::WorkError;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use serde::Serialize;
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::Leash;
use super::board::Board;
use crate::error::ApiError;

/// How many events may wait for a client.
const BACKLOG: usize = 1;
/// Oftener than that, nobody wants to know.
pub(super) const PACE: Duration = Duration::from_millis(100);

/// Tells how far it is until it is done, unless it is done already. When nobody listens any more, the leash is dropped.
pub(super) fn stream<T, D>(early: Option<T>, done: Pin<Box<D>>, board: Board, leash: Leash) -> impl IntoResponse
where
    T: Serialize + Send + 'static,
    D: Future<Output = Result<T, ApiError>> + Send + 'static,
{
    let (say, events) = mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        let _leash = leash;
        let ended = match early {
            Some(done) => Some(Ok(done)),
            None => until_done(done, &board, &say).await,
        };
        if let Some(ended) = ended
            && tell(&board, &say).await
            && say.send(last(ended)).await.is_err()
        {
            log::debug!("nobody listened to the end");
        }
    });
    Sse::new(ReceiverStream::new(events).map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default())
}

/// What came of it; `None` when nobody listens any more.
async fn until_done<T, D>(mut done: Pin<Box<D>>, board: &Board, say: &Sender<Event>) -> Option<Result<T, ApiError>>
where
    D: Future<Output = Result<T, ApiError>>,
{
    loop {
        if !tell(board, say).await {
            return None;
        }
        let news = async {
            tokio::time::sleep(PACE).await;
            board.changed().await;
        };
        tokio::select! {
            ended = &mut done => return Some(ended),
            () = say.closed() => return None,
            () = news => {}
        }
    }
}

/// Tells what is new; whether somebody listens.
pub(super) async fn tell(board: &Board, say: &Sender<Event>) -> bool {
    for progress in board.news() {
        if say.send(event("progress", &progress)).await.is_err() {
            return false;
        }
    }
    true
}

fn last<T: Serialize>(ended: Result<T, ApiError>) -> Event {
    match ended {
        Ok(result) => event("result", &result),
        Err(error) => {
            if error.status.is_server_error() {
                log::error!("work that somebody watched failed: {error}");
            }
            let status = error.status.as_u16();
            event("error", &WorkError { error: error.message, code: error.code, status })
        }
    }
}

pub(super) fn event<T: Serialize>(name: &str, data: &T) -> Event {
    Event::default().event(name).json_data(data).expect("what we say can be written as JSON")
}
