//! A sandbox's serial console, as text.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use engine::Child;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::Failures;
use crate::body::{ApiQuery, Name};
use crate::error::ApiError;
use crate::state::App;

/// How much of the end of a console is looked at.
const MAX_BYTES: u64 = 4 << 20;
/// How much is read at once while following.
const PIECE: u64 = 64 << 10;
/// Between two looks while following: the console is a file that a VMM appends to.
const PAUSE: Duration = Duration::from_millis(200);

/// What of a console is wanted.
#[derive(Debug, Deserialize)]
pub(super) struct Wanted {
    #[serde(default)]
    follow: bool,
    tail: Option<usize>,
}

/// What a sandbox's kernel and console wrote. `follow` goes on until the sandbox ends.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/console", tag = "sandboxes",
    params(("id" = String, Path), ("follow" = Option<bool>, Query), ("tail" = Option<u64>, Query)),
    responses((status = 200, body = String, content_type = "text/plain"), Failures))]
pub(super) async fn console(
    State(app): State<App>,
    Name(id): Name,
    ApiQuery(wanted): ApiQuery<Wanted>,
) -> Result<Response, ApiError> {
    let (child, path, shown, at) = app
        .verb(move |app| {
            let (_, child) = app.living(&id)?;
            let path = child.path().join("console.log");
            let (shown, at) = end(&path, wanted.tail)
                .map_err(|error| ApiError::internal(format!("the console of {id} cannot be read: {error}")))?;
            Ok((child, path, shown, at))
        })
        .await?;
    let body = if wanted.follow { follow(&app, child, path, shown, at) } else { Body::from(shown) };
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response())
}

/// The last lines, and where they end. One that was never written to is empty.
fn end(path: &Path, tail: Option<usize>) -> io::Result<(Vec<u8>, u64)> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    let start = length.saturating_sub(MAX_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let at = start + bytes.len() as u64;
    if let Some(lines) = tail {
        bytes.drain(..begin_of_last(&bytes, lines));
    }
    Ok((bytes, at))
}

/// Where the last lines begin.
fn begin_of_last(bytes: &[u8], lines: usize) -> usize {
    let whole = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if lines == 0 {
        return bytes.len();
    }
    let mut breaks = whole.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    breaks.nth(lines - 1).map_or(0, |(at, _)| at + 1)
}

/// What there is, then what comes, until the sandbox or the daemon ends.
fn follow(app: &App, child: Child, path: PathBuf, shown: Vec<u8>, mut at: u64) -> Body {
    let (say, pieces) = mpsc::channel::<io::Result<Bytes>>(4);
    let mut stopping = app.stopping.subscribe();
    tokio::spawn(async move {
        let mut next = shown;
        loop {
            if !next.is_empty() && say.send(Ok(next.into())).await.is_err() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = say.closed() => return,
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
            let (child, path) = (child.clone(), path.clone());
            let look = tokio::task::spawn_blocking(move || {
                // In this order: what it wrote before it ended is not missed.
                let alive = child.is_alive()?;
                Ok::<_, io::Error>((alive, more(&path, at)?))
            });
            match look.await {
                Ok(Ok((alive, (bytes, end)))) if alive || !bytes.is_empty() => (next, at) = (bytes, end),
                _ => return,
            }
        }
    });
    Body::from_stream(ReceiverStream::new(pieces))
}

/// What was written since; a console that was begun anew is read from its beginning.
fn more(path: &Path, at: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut file = File::open(path)?;
    let from = if file.metadata()?.len() < at { 0 } else { at };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(PIECE).read_to_end(&mut bytes)?;
    let end = from + bytes.len() as u64;
    Ok((bytes, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole() {
        let last = |text: &'static str, lines| &text[begin_of_last(text.as_bytes(), lines)..];
        assert_eq!(last("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last("a\nb\nc", 1), "c");
        assert_eq!(last("a\nb\n", 9), "a\nb\n");
        assert_eq!(last("a\n", 0), "");
        assert_eq!(last("", 1), "");
    }

    #[test]
    fn a_console_that_begins_anew_is_followed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one\ntwo\n").unwrap();
        let (shown, at) = end(file.path(), Some(1)).unwrap();
        assert_eq!((shown.as_slice(), at), (&b"two\n"[..], 8));
        assert_eq!(more(file.path(), at).unwrap(), (vec![], 8));
        std::fs::write(file.path(), "new").unwrap();
        assert_eq!(more(file.path(), at).unwrap(), (b"new".to_vec(), 3));
        assert_eq!(end(Path::new("/nowhere/log"), None).unwrap(), (vec![], 0));
    }
}
