//! Long work that somebody may watch: one verb, answered at its end, or as a stream of how far it is.
//!
//! ```text
//! Accept: text/event-stream    progress, progress, ..., then result or error; who leaves calls it off
//! anything else                the result, or the error; it goes on to its end, whoever leaves
//! ```
//!
//! Who watches wants to be able to call it off, and has no other way than to leave. Who does not watch may have a short
//! patience and look again later; what he asked for is done, as it is with every other verb. What cannot be stopped where
//! it is ends by itself, and is then as whole as if somebody had waited. A daemon that is about to end calls everything off.

mod board;
mod relay;
mod tell;
mod watch;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::Cancel;
use serde::Serialize;
use types::progress::Progress;

use crate::body::ApiJson;
use crate::error::ApiError;
use crate::state::App;
use board::Board;

pub use relay::relay;
pub(crate) use watch::Watches;

/// How long work may take to begin until it is answered that it does.
const BEGINNING: Duration = Duration::from_secs(1);

/// Whether whoever asks wants to see how far it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched(bool);

impl<S: Send + Sync> FromRequestParts<S> for Watched {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let accepted = parts.headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut kinds = accepted.flat_map(|value| value.split(',')).map(|kind| kind.split(';').next().unwrap_or(kind));
        Ok(Self(kinds.any(|kind| kind.trim().eq_ignore_ascii_case(api::EVENT_STREAM))))
    }
}

/// Work under way, as the verb sees it. A daemon that has some is not idle, whether anybody waits for it or not.
#[derive(Debug)]
pub(crate) struct Job {
    app: App,
    board: Board,
    cancel: Cancel,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.app.jobs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Job {
    fn begin(app: &App, board: Board, cancel: Cancel) -> Self {
        app.jobs.fetch_add(1, Ordering::Relaxed);
        Self { app: app.clone(), board, cancel }
    }

    /// Where its stages are told.
    pub(crate) fn progress(&self) -> &dyn Progress {
        &self.board
    }

    /// Whether nobody wants it any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        // What cannot be asked goes on.
        *self.app.stopping.borrow() || self.cancel.wait(Instant::now()).unwrap_or(false)
    }

    /// The same, for who waits for other things, too.
    pub(crate) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }
}

/// Calls it off when dropped.
#[derive(Debug)]
struct Leash(Cancel);

impl Drop for Leash {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl App {
    /// Runs a verb that takes long, and answers as whoever asks wants it.
    pub(crate) async fn work<T, W>(&self, watched: Watched, status: StatusCode, work: W) -> Result<Response, ApiError>
    where
        T: Serialize + Send + 'static,
        W: FnOnce(&Self, &Job) -> Result<T, ApiError> + Send + 'static,
    {
        let cancel = Cancel::new().map_err(|error| ApiError::internal(format!("no event descriptor: {error}")))?;
        let board = Board::default();
        let job = Job::begin(self, board.clone(), cancel.clone());
        let app = self.clone();
        let mut done =
            Box::pin(
                async move { app.verb(move |app| work(app, &job).map_err(|error| app.unless_stopping(error))).await },
            );
        if !watched.0 {
            return Ok((status, ApiJson(done.await?)).into_response());
        }
        let leash = Leash(cancel);
        let early = tokio::select! {
            done = &mut done => Some(done?),
            () = board.changed() => None,
            () = tokio::time::sleep(BEGINNING) => None,
        };
        Ok(tell::stream(early, done, board, leash).into_response())
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[tokio::test]
    async fn who_accepts_a_stream_watches() {
        for (accept, expected) in [
            (Some("text/event-stream"), true),
            (Some("application/json, Text/Event-Stream;q=0.5"), true),
            (Some("application/json"), false),
            (Some("*/*"), false),
            (None, false),
        ] {
            let request = accept.into_iter().fold(Request::builder(), |it, accept| it.header("accept", accept));
            let (mut parts, ()) = request.body(()).unwrap().into_parts();
            let Watched(watched) = Watched::from_request_parts(&mut parts, &()).await.unwrap();
            assert_eq!(watched, expected, "{accept:?}");
        }
    }
}
