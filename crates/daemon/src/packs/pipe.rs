//! Bytes between a request and a verb that reads or writes them on a thread of its own.
//!
//! ```text
//! body of a request ── pieces ──► PackReader: ends where the body ends, and fails where it breaks off
//! PackWriter ── pieces ──► body of an answer: the first piece decides what is answered
//! ```

use std::io::{self, Read, Write};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _};

use crate::error::ApiError;
use crate::state::App;
use crate::upload;

/// How many pieces may wait.
const BACKLOG: usize = 4;
/// How much is written at once.
const PIECE: usize = 128 << 10;
/// How long a client may take to read a piece.
const PATIENCE: Duration = Duration::from_secs(60);

/// A piece of a body; the last one is empty, because a body that breaks off has no end.
type Piece = Result<Bytes, io::Error>;

/// The body of a request, read on a thread.
#[derive(Debug)]
pub(crate) struct PackReader {
    pieces: mpsc::Receiver<Piece>,
    now: Bytes,
    is_over: bool,
}

impl Read for PackReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() && !self.is_over {
            match self.pieces.blocking_recv() {
                Some(piece) => {
                    self.now = piece?;
                    self.is_over = self.now.is_empty();
                }
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "whoever sent it left")),
            }
        }
        let count = self.now.len().min(to.len());
        to[..count].copy_from_slice(&self.now.split_to(count));
        Ok(count)
    }
}

/// Has a verb read a body.
pub(crate) async fn pipe_in<T: Send + 'static>(
    app: &App,
    body: Body,
    work: impl FnOnce(&App, PackReader) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (send, pieces) = mpsc::channel(BACKLOG);
    let reader = PackReader { pieces, now: Bytes::new(), is_over: false };
    let mut stream = body.into_data_stream();
    let mut verb = pin!(app.verb(move |app| work(app, reader)));
    // A verb that ends before the body does has seen enough. Who leaves drops both, and a body without an end is an error.
    let (done, is_all) = tokio::select! {
        done = &mut verb => (done, false),
        is_all = feed(&mut stream, send) => (verb.await, is_all),
    };
    if !is_all {
        // Who still sends does not read.
        upload::drain(stream).await;
    }
    done
}

/// Hands a body on, piece by piece; whether all of it was taken.
async fn feed(stream: &mut BodyDataStream, send: mpsc::Sender<Piece>) -> bool {
    loop {
        let piece = match tokio::time::timeout(upload::PATIENCE, stream.next()).await {
            Ok(Some(Ok(bytes))) if bytes.is_empty() => continue,
            Ok(Some(Ok(bytes))) => Ok(bytes),
            Ok(None) => Ok(Bytes::new()),
            Ok(Some(Err(error))) => Err(io::Error::other(error)),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing of the body came for too long")),
        };
        let is_last = piece.as_ref().map_or(true, Bytes::is_empty);
        // When no more is read, the verb says why.
        if send.send(piece).await.is_err() {
            return false;
        }
        if is_last {
            return true;
        }
    }
}

/// The body of an answer, written on a thread.
#[derive(Debug)]
pub(crate) struct PackWriter {
    pieces: mpsc::Sender<Result<Bytes, ApiError>>,
    waiting: Vec<u8>,
}

impl PackWriter {
    /// Tells whether nobody reads it any more.
    pub(crate) fn left(&self) -> impl Fn() -> bool + use<> {
        let pieces = self.pieces.clone();
        move || pieces.is_closed()
    }

    fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.send(Bytes::new())
    }

    /// A client that does not read must not hold a thread.
    fn send(&self, piece: Bytes) -> io::Result<()> {
        let sent =
            tokio::runtime::Handle::current().block_on(tokio::time::timeout(PATIENCE, self.pieces.send(Ok(piece))));
        match sent {
            Ok(sent) => sent.map_err(|_| io::ErrorKind::BrokenPipe.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Write for PackWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.waiting, Vec::with_capacity(PIECE));
        self.send(piece.into())
    }
}

/// Has a verb write a body. What fails before the first piece is the answer; later, it breaks the body off.
pub(crate) async fn pipe_out(
    app: &App,
    work: impl FnOnce(&App, &mut PackWriter) -> Result<(), ApiError> + Send + 'static,
) -> Result<Body, ApiError> {
    let (send, mut pieces) = mpsc::channel(BACKLOG);
    let (app, last) = (app.clone(), send.clone());
    tokio::spawn(async move {
        let done = app.verb(move |app| {
            let mut writer = PackWriter { pieces: send, waiting: Vec::new() };
            work(app, &mut writer)?;
            writer.finish().map_err(|error| ApiError::internal(format!("the pack could not be sent: {error}")))
        });
        if let Err(error) = done.await
            && last.send(Err(error)).await.is_err()
        {
            log::debug!("nobody reads the pack any more");
        }
    });
    let first = pieces.recv().await.unwrap_or_else(|| Err(broken_off()))?;
    Ok(Body::from_stream(Pieces { first: Some(first), rest: pieces, is_over: false }))
}

fn broken_off() -> ApiError {
    ApiError::internal("the pack broke off")
}

/// What was written, to the empty piece that ends it.
struct Pieces {
    first: Option<Bytes>,
    rest: mpsc::Receiver<Result<Bytes, ApiError>>,
    is_over: bool,
}

impl Stream for Pieces {
    type Item = Result<Bytes, ApiError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        let next = ready!(self.rest.poll_recv(context)).unwrap_or_else(|| Err(broken_off()));
        self.is_over = next.as_ref().map_or(true, Bytes::is_empty);
        Poll::Ready(Some(next).filter(|piece| !piece.as_ref().is_ok_and(Bytes::is_empty)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_ends_where_it_says_so_and_nowhere_else() {
        let (send, pieces) = mpsc::channel(4);
        let mut reader = PackReader { pieces, now: Bytes::new(), is_over: false };
        for piece in ["ab", "c", ""] {
            send.try_send(Ok(piece.into())).unwrap();
        }
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        assert_eq!((all.as_str(), reader.read(&mut [0]).unwrap()), ("abc", 0));
        let (send, pieces) = mpsc::channel(4);
        let mut reader = PackReader { pieces, now: Bytes::new(), is_over: false };
        send.try_send(Ok("ab".into())).unwrap();
        drop(send);
        assert_eq!(reader.read_to_string(&mut all).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
