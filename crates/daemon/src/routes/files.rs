//! Files of a sandbox, read and written as streams.

use api::{FileInfo, FileKind, MakeDir, MoveFile};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use session::{Connection, GuestPath, ListFiles, ReadFile, RemoveFile, SessionError, StatFile, WriteFile};
use tokio_stream::wrappers::ReceiverStream;

use super::Failures;
use crate::body::{ApiJson, ApiQuery, Name};
use crate::error::ApiError;
use crate::guests::{CallError, Talk};
use crate::state::App;

/// How many pieces may wait for a client, besides those that wait for them.
const BACKLOG: usize = 1;
/// About how much of a list is sent at once.
const LIST_PIECE: usize = 64 << 10;
/// All permissions there are.
const ALL_MODES: u32 = 0o7777;

/// Which file, and who asks.
#[derive(Debug, Deserialize)]
pub(super) struct Which {
    path: String,
    user: Option<String>,
}

/// The contents of a file; a link is followed. What breaks off was not all of it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(("id" = String, Path), ("path" = String, Query, description = "Absolute"), ("user" = Option<String>, Query)),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"), Failures))]
pub(super) async fn read(
    State(app): State<App>,
    Name(id): Name,
    ApiQuery(which): ApiQuery<Which>,
) -> Result<Response, ApiError> {
    let request = ReadFile { path: path(&which.path)?, offset: 0, length: None, user: which.user };
    let talk = app.talk(&id, move |connection, say| {
        let mut file = connection.read_file(&request)?;
        // That it can be read.
        say.say(Bytes::new())?;
        while let Some(piece) = file.next_chunk()? {
            say.say(piece.into())?;
        }
        Ok(())
    })?;
    let body = stream(talk).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// What comes, once the first of it is there; it may be empty. An error that comes later breaks the body off.
async fn stream(mut talk: Talk<Bytes>) -> Result<Body, ApiError> {
    let first = talk.next().await.unwrap_or(Err(CallError::Left)).map_err(|error| error.meaning(ApiError::of_file))?;
    let (say, pieces) = tokio::sync::mpsc::channel::<Result<Bytes, ApiError>>(BACKLOG);
    tokio::spawn(async move {
        let mut next: Option<Result<Bytes, CallError>> = Some(Ok(first));
        while let Some(piece) = next {
            let piece = piece.map_err(|error| error.meaning(ApiError::of_file));
            let is_empty = piece.as_ref().is_ok_and(Bytes::is_empty);
            if !is_empty && say.send(piece).await.is_err() {
                return;
            }
            next = tokio::select! {
                next = talk.next() => next,
                () = say.closed() => None,
            };
        }
    });
    Ok(Body::from_stream(ReceiverStream::new(pieces)))
}

/// What may be said about a file that is written.
#[derive(Debug, Deserialize)]
pub(super) struct Written {
    path: String,
    mode: Option<String>,
    #[serde(default = "yes")]
    parents: bool,
    user: Option<String>,
}

const fn yes() -> bool {
    true
}

/// Writes a file: the body as it is, however long. It is written beside its place and then moved there, so nobody ever
/// sees half of it, and a body that breaks off changes nothing.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(
        ("id" = String, Path),
        ("path" = String, Query, description = "Absolute"),
        ("mode" = Option<String>, Query, description = "Permissions as octal digits; else those it had, or 0644"),
        ("parents" = Option<bool>, Query, description = "Make the directories that are missing, which is what happens unless this is false"),
        ("user" = Option<String>, Query, description = "Who writes, and whose it then is; root when absent"),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = FileInfo), Failures))]
pub(super) async fn write(
    State(app): State<App>,
    Name(id): Name,
    ApiQuery(asked): ApiQuery<Written>,
    body: Body,
) -> Result<ApiJson<FileInfo>, ApiError> {
    let Written { path: to, mode: bits, parents, user } = asked;
    let request = WriteFile { path: path(&to)?, mode: mode(bits.as_deref())?, parents, user };
    let open = move |connection: Connection| connection.write_file(&request);
    let written = app.upload(&id, body, open).await.map_err(|error| error.meaning(ApiError::of_file))?;
    Ok(ApiJson(told(written)))
}

/// What may be said about a file that is removed.
#[derive(Debug, Deserialize)]
pub(super) struct Removed {
    path: String,
    #[serde(default)]
    recursive: bool,
    user: Option<String>,
}

/// Removes a file or a directory; a link and not what it points to.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/files", tag = "files",
    params(("id" = String, Path), ("path" = String, Query), ("recursive" = Option<bool>, Query),
        ("user" = Option<String>, Query)),
    responses((status = 204), Failures))]
pub(super) async fn remove(
    State(app): State<App>,
    Name(id): Name,
    ApiQuery(asked): ApiQuery<Removed>,
) -> Result<StatusCode, ApiError> {
    let request = RemoveFile { path: path(&asked.path)?, recursive: asked.recursive, user: asked.user };
    ask(&app, &id, move |mut connection| connection.remove_file(&request)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What a file is; a link is not followed.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/stat", tag = "files",
    params(("id" = String, Path), ("path" = String, Query), ("user" = Option<String>, Query)),
    responses((status = 200, body = FileInfo), Failures))]
pub(super) async fn stat(
    State(app): State<App>,
    Name(id): Name,
    ApiQuery(which): ApiQuery<Which>,
) -> Result<ApiJson<FileInfo>, ApiError> {
    let request = StatFile { path: path(&which.path)?, user: which.user };
    let found = ask(&app, &id, move |mut connection| connection.stat_file(&request)).await?;
    Ok(ApiJson(told(found)))
}

/// What may be said about a list.
#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    path: String,
    depth: Option<u32>,
    user: Option<String>,
}

/// What is below a directory, in no order: 1 is what is in the directory itself. Links are not followed. A list that
/// breaks off was not all of it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/list", tag = "files",
    params(("id" = String, Path), ("path" = String, Query), ("depth" = Option<u32>, Query),
        ("user" = Option<String>, Query)),
    responses((status = 200, body = [FileInfo]), Failures))]
pub(super) async fn list(
    State(app): State<App>,
    Name(id): Name,
    ApiQuery(asked): ApiQuery<Listed>,
) -> Result<Response, ApiError> {
    let depth = asked.depth.unwrap_or(1);
    if depth == 0 {
        return Err(ApiError::invalid("depth is 0; 1 is what is in the directory itself"));
    }
    let request = ListFiles { path: path(&asked.path)?, depth, user: asked.user };
    let talk = app.talk(&id, move |connection, say| {
        let mut text = vec![b'['];
        for (number, file) in connection.list_files(&request)?.enumerate() {
            if number > 0 {
                text.push(b',');
            }
            serde_json::to_writer(&mut text, &told(file?)).map_err(|error| ApiError::internal(error.to_string()))?;
            if text.len() >= LIST_PIECE {
                say.say(std::mem::take(&mut text).into())?;
            }
        }
        text.push(b']');
        say.say(text.into())
    })?;
    let body = stream(talk).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// Makes a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/mkdir", tag = "files", params(("id" = String, Path)),
    request_body = MakeDir, responses((status = 201, body = FileInfo), Failures))]
pub(super) async fn mkdir(
    State(app): State<App>,
    Name(id): Name,
    ApiJson(asked): ApiJson<MakeDir>,
) -> Result<(StatusCode, ApiJson<FileInfo>), ApiError> {
    let MakeDir { path: at, parents, mode: bits, user } = asked;
    let request = session::MakeDir { path: path(&at)?, mode: mode(bits.as_deref())?, parents, user };
    let made = ask(&app, &id, move |mut connection| connection.make_dir(&request)).await?;
    Ok((StatusCode::CREATED, ApiJson(told(made))))
}

/// Moves a file or a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/move", tag = "files", params(("id" = String, Path)),
    request_body = MoveFile, responses((status = 200, body = FileInfo), Failures))]
pub(super) async fn rename(
    State(app): State<App>,
    Name(id): Name,
    ApiJson(asked): ApiJson<MoveFile>,
) -> Result<ApiJson<FileInfo>, ApiError> {
    let MoveFile { from, to, overwrite, user } = asked;
    let request = session::MoveFile { from: path(&from)?, to: path(&to)?, overwrite, user };
    let moved = ask(&app, &id, move |mut connection| connection.move_file(&request)).await?;
    Ok(ApiJson(told(moved)))
}

async fn ask<T: Send + 'static>(
    app: &App,
    id: &str,
    work: impl FnOnce(Connection) -> Result<T, SessionError> + Send + 'static,
) -> Result<T, ApiError> {
    app.ask(id, work).await.map_err(|error| error.meaning(ApiError::of_file))
}

fn path(text: &str) -> Result<GuestPath, ApiError> {
    text.parse().map_err(|error| ApiError::invalid(format!("path: {error}")))
}

/// Permissions as octal digits.
fn mode(text: Option<&str>) -> Result<Option<u32>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let is_octal = !text.is_empty() && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let bits = u32::from_str_radix(text, 8).ok().filter(|bits| is_octal && *bits <= ALL_MODES);
    let bits = bits.ok_or_else(|| ApiError::invalid("mode is octal digits, such as 0644, and at most 7777"))?;
    Ok(Some(bits))
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are far below the point where this matters")]
fn told(file: session::FileInfo) -> FileInfo {
    let name = file.path.trim_end_matches('/').rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/");
    FileInfo {
        name: name.to_owned(),
        path: file.path,
        kind: match file.kind {
            session::FileKind::File => FileKind::File,
            session::FileKind::Dir => FileKind::Dir,
            session::FileKind::Symlink => FileKind::Symlink,
            session::FileKind::Other => FileKind::Other,
        },
        size: file.size,
        mode: format!("{:04o}", file.mode & ALL_MODES),
        uid: file.uid,
        gid: file.gid,
        mtime_unix: file.mtime_unix_ms as f64 / 1000.0,
        target: file.target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_octal_digits() {
        assert_eq!(mode(None).unwrap(), None);
        assert_eq!(mode(Some("0644")).unwrap(), Some(0o644));
        assert_eq!(mode(Some("7777")).unwrap(), Some(0o7777));
        for bad in ["", "rw", "8", "-644", "+644", "17777", "0o644"] {
            assert_eq!(mode(Some(bad)).unwrap_err().status.as_u16(), 400, "{bad}");
        }
    }

    #[test]
    fn a_name_is_the_last_part_of_a_path() {
        let info = |path: &str| session::FileInfo {
            path: path.into(),
            kind: session::FileKind::File,
            size: 1,
            mode: 0o100_644,
            uid: 0,
            gid: 0,
            mtime_unix_ms: 1500,
            target: None,
        };
        assert_eq!(told(info("/a/b")).name, "b");
        assert_eq!(told(info("/")).name, "/");
        let told = told(info("/a/"));
        assert_eq!((told.name.as_str(), told.mode.as_str(), told.mtime_unix), ("a", "0644", 1.5));
    }
}
