//! How far a request is whose body or answer is bytes, told on another connection.
//!
//! ```text
//! GET .../progress            watch: its name, then progress, progress, ...; it ends when that request does
//! GET .../pack?watch=NAME     bytes
//! ```

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::{Code, Watch};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::response::sse::{KeepAlive, Sse};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use types::progress::Progress;

use super::board::Board;
use super::tell::{PACE, event, tell};
use crate::error::ApiError;
use crate::state::App;

/// How many may wait for a request at once.
const MAX_WATCHES: usize = 64;
/// How long a request may take to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Those that no request has come for yet.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    by_name: HashMap<String, (Board, oneshot::Sender<Over>)>,
}

/// Gone when a request is over.
type Over = oneshot::Receiver<Infallible>;

/// A request that somebody may watch, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Work {
    board: Board,
    _over: Option<oneshot::Sender<Infallible>>,
}

impl Work {
    /// Where its stages are told.
    pub(crate) fn progress(&self) -> &dyn Progress {
        &self.board
    }
}

impl Watches {
    /// It is whole at every step.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, board: Board, begun: oneshot::Sender<Over>) -> Result<String, ApiError> {
        let mut waiting = self.lock();
        if waiting.by_name.len() >= MAX_WATCHES {
            let message = format!("{MAX_WATCHES} requests are waited for, which is all that may be; try again");
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Code::Overloaded, message));
        }
        let name = waiting.next.to_string();
        waiting.next += 1;
        waiting.by_name.insert(name.clone(), (board, begun));
        Ok(name)
    }

    fn forget(&self, name: &str) {
        self.lock().by_name.remove(name);
    }

    /// For a request that says under what name it is watched, if it is.
    pub(crate) fn begin(&self, name: Option<&str>) -> Result<Work, ApiError> {
        let Some(name) = name else { return Ok(Work::default()) };
        let found = self.lock().by_name.remove(name);
        let (board, begun) = found.ok_or_else(|| ApiError::invalid("nobody watches under that name (any more)"))?;
        let (ending, over) = oneshot::channel();
        // Who has just left will not miss it.
        drop(begun.send(over));
        Ok(Work { board, _over: Some(ending) })
    }
}

impl App {
    /// Watches a request that is about to come.
    pub(crate) fn watch(&self) -> Result<impl IntoResponse + use<>, ApiError> {
        let (board, (begun, beginning)) = (Board::default(), oneshot::channel());
        let name = self.watches.open(board.clone(), begun)?;
        let (say, events) = mpsc::channel(1);
        let app = self.clone();
        tokio::spawn(async move {
            let first = event("watch", &Watch { watch: name.clone() });
            let begun = async {
                say.send(first).await.ok()?;
                tokio::time::timeout(PATIENCE, beginning).await.ok()?.ok()
            };
            let over = tokio::select! {
                over = begun => over,
                () = say.closed() => None,
            };
            match over {
                Some(over) => follow(&board, &say, over).await,
                None => app.watches.forget(&name),
            }
        });
        Ok(Sse::new(ReceiverStream::new(events).map(Ok::<_, Infallible>)).keep_alive(KeepAlive::default()))
    }
}

/// Tells what is new until the request is over or nobody listens.
async fn follow(board: &Board, say: &mpsc::Sender<axum::response::sse::Event>, mut over: Over) {
    while tell(board, say).await {
        let news = async {
            tokio::time::sleep(PACE).await;
            board.changed().await;
        };
        tokio::select! {
            _ = &mut over => {
                tell(board, say).await;
                return;
            }
            () = say.closed() => return,
            () = news => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_watched_under_its_name_once_and_to_its_end() {
        let watches = Watches::default();
        let (board, (begun, beginning)) = (Board::default(), oneshot::channel());
        let name = watches.open(board.clone(), begun).unwrap();
        let work = watches.begin(Some(&name)).unwrap();
        let mut over = beginning.await.unwrap();
        let stage = work.progress().stage("Packing", Some(9));
        stage.advance(3);
        assert_eq!(board.news()[0].done, 3);
        over.try_recv().unwrap_err();
        drop((stage, work));
        over.await.unwrap_err();
        assert_eq!(watches.begin(Some(&name)).unwrap_err().status.as_u16(), 400);
        watches.begin(None).unwrap();
    }

    #[test]
    fn there_is_room_for_so_many() {
        let watches = Watches::default();
        let open = || watches.open(Board::default(), oneshot::channel().0);
        let names: Vec<_> = (0..MAX_WATCHES).map(|_| open().unwrap()).collect();
        assert_eq!(open().unwrap_err().code, Code::Overloaded);
        watches.forget(&names[0]);
        open().unwrap();
    }
}
