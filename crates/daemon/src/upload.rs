//! The body of a request on its way into a guest: piece by piece, never as a whole.

use std::time::Duration;

use api::Code;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::StatusCode;
use session::{Connection, FileInfo, FileWriter, InputWriter, SessionError};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;

use crate::error::ApiError;
use crate::guests::{CallError, Say, Talk};
use crate::state::App;

/// How many pieces may wait for the guest.
const BACKLOG: usize = 4;
/// How long the next piece may take to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How much of a body that nobody wants any more is read, so that its sender gets to read the answer; and for how long.
const MAX_REST: usize = 16 << 20;
const REST_PATIENCE: Duration = Duration::from_secs(5);

/// What takes bytes in a guest. Dropped before it is finished, it was never whole, and the guest knows that.
pub(crate) trait Sink {
    /// What it tells when it has all of them.
    type Done: Send + 'static;

    /// Sends some of the bytes; how many.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, SessionError>;

    /// These were all.
    fn finish(self) -> Result<Self::Done, SessionError>;
}

impl Sink for FileWriter {
    type Done = FileInfo;

    fn send(&mut self, bytes: &[u8]) -> Result<usize, SessionError> {
        Self::send(self, bytes)
    }

    fn finish(self) -> Result<FileInfo, SessionError> {
        Self::finish(self)
    }
}

impl Sink for InputWriter {
    type Done = ();

    fn send(&mut self, bytes: &[u8]) -> Result<usize, SessionError> {
        Self::send(self, bytes)
    }

    fn finish(self) -> Result<(), SessionError> {
        Self::finish(self)
    }
}

/// What goes to the guest.
enum Piece {
    Bytes(Bytes),
    /// There are no more: a body that breaks off has no end.
    End,
}

impl App {
    /// Sends a body to what takes it in a sandbox, however long it is.
    pub(crate) async fn upload<S: Sink>(
        &self,
        id: &str,
        body: Body,
        open: impl FnOnce(Connection) -> Result<S, SessionError> + Send + 'static,
    ) -> Result<S::Done, CallError> {
        let (send, pieces) = mpsc::channel(BACKLOG);
        let talk = self.talk(id, move |connection, say| take_in(open(connection)?, pieces, say))?;
        let mut stream = body.into_data_stream();
        let done = pass_on(&mut stream, send, talk).await;
        if done.is_err() {
            drain(stream).await;
        }
        done
    }
}

async fn pass_on<T>(stream: &mut BodyDataStream, send: mpsc::Sender<Piece>, talk: Talk<T>) -> Result<T, CallError> {
    loop {
        let next = tokio::time::timeout(PATIENCE, stream.next()).await.map_err(|_| too_slow())?;
        let piece = next.transpose().map_err(|error| ApiError::invalid(format!("the body broke off: {error}")))?;
        let is_last = piece.is_none();
        // When the guest takes no more, it has said why.
        if send.send(piece.map_or(Piece::End, Piece::Bytes)).await.is_err() || is_last {
            return talk.only().await;
        }
    }
}

/// The guest's side of it, on a thread.
fn take_in<S: Sink>(mut sink: S, mut pieces: mpsc::Receiver<Piece>, say: &Say<S::Done>) -> Result<(), CallError> {
    while let Some(piece) = pieces.blocking_recv() {
        let Piece::Bytes(mut bytes) = piece else { return say.say(sink.finish()?) };
        while !bytes.is_empty() {
            let sent = sink.send(&bytes)?;
            drop(bytes.split_to(sent));
        }
    }
    Err(CallError::Left)
}

/// Reads on for a while: whoever is still sending does not read; how far he gets is his affair.
pub(crate) async fn drain(stream: BodyDataStream) {
    drop(tokio::time::timeout(REST_PATIENCE, discard(stream)).await);
}

async fn discard(mut stream: BodyDataStream) {
    let mut left = MAX_REST;
    while let Some(Ok(bytes)) = stream.next().await {
        let Some(less) = left.checked_sub(bytes.len()) else { return };
        left = less;
    }
}

fn too_slow() -> ApiError {
    let message = format!("nothing of the body came for {} s", PATIENCE.as_secs());
    ApiError::new(StatusCode::REQUEST_TIMEOUT, Code::RequestTimeout, message)
}
