//! The guest's files, on behalf of a client and as the user it names.
//!
//! ```text
//! read      a file's bytes to the client              list      a tree, in pieces
//! write     the client's bytes beside a file, and then into its place
//! place     directories made, files moved             remove    a tree, from its leaves up
//! ```
//!
//! Trees are the work of programs in the guest and may be deep, wide and changing: they are walked with a bounded number of
//! open directories, without recursion and without following links.

mod info;
mod list;
mod place;
mod read;
mod remove;
mod write;

use std::io;

use proto::guest::{ErrorCode, FileRequest, Reply};
use rustix::io::Errno;

use crate::peer::{Peer, PeerError};
use crate::sys::Acting;
use crate::users::{UserError, Users};

/// Why something with files was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("cannot {action} {path}: {source}")]
    System { action: &'static str, path: String, source: io::Error },
    #[error("{path} is not a regular file")]
    NotAFile { path: String },
    #[error("{path} names no file of its own")]
    NoName { path: String },
    #[error("{path} is deeper than {limit} directories")]
    TooDeep { path: String, limit: usize },
    #[error("{mode:o} is not a mode; they go up to 7777")]
    Mode { mode: u32 },
    #[error(transparent)]
    User(#[from] UserError),
    #[error("cannot act as the user: {source}")]
    Act { source: io::Error },
}

impl FileError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::System { source, .. } => code_of(source),
            Self::NotAFile { .. } => ErrorCode::NotAFile,
            Self::NoName { .. } | Self::Mode { .. } => ErrorCode::BadArgument,
            Self::TooDeep { .. } | Self::Act { .. } => ErrorCode::Failed,
            Self::User(_) => ErrorCode::NoSuchUser,
        }
    }
}

/// Which case an error of the system's is.
pub(crate) fn code_of(error: &io::Error) -> ErrorCode {
    let Some(errno) = Errno::from_io_error(error) else { return ErrorCode::Failed };
    match errno {
        Errno::NOENT => ErrorCode::NotFound,
        Errno::ACCESS | Errno::PERM => ErrorCode::PermissionDenied,
        Errno::ISDIR => ErrorCode::IsADirectory,
        Errno::NOTDIR => ErrorCode::NotADirectory,
        Errno::EXIST => ErrorCode::AlreadyExists,
        Errno::NOTEMPTY => ErrorCode::NotEmpty,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorCode::NoSpace,
        Errno::ROFS => ErrorCode::ReadOnly,
        Errno::XDEV => ErrorCode::CrossDevice,
        Errno::BUSY | Errno::TXTBSY => ErrorCode::Busy,
        Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL => ErrorCode::BadArgument,
        Errno::CONNREFUSED => ErrorCode::ConnectionRefused,
        Errno::TIMEDOUT | Errno::AGAIN => ErrorCode::Timeout,
        _ => ErrorCode::Failed,
    }
}

/// Why an operation ended early: the client hears of the first, and is gone with the second.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// Names what was being done, and to what.
fn doing<E: Into<io::Error>>(action: &'static str, path: &str) -> impl Fn(E) -> FileError {
    move |source| FileError::System { action, path: path.into(), source: source.into() }
}

/// Does what a client asks for, and answers.
pub(crate) fn serve(peer: &mut Peer, request: &FileRequest) -> Result<(), PeerError> {
    match act(peer, request) {
        Ok(()) => Ok(()),
        Err(Trouble::File(error)) => peer.reply(&Reply::Error { code: error.code(), message: error.to_string() }),
        Err(Trouble::Peer(error)) => Err(error),
    }
}

fn act(peer: &mut Peer, request: &FileRequest) -> Result<(), Trouble> {
    let user = request.user().map(find_user).transpose()?;
    let _acting =
        user.map(|user| Acting::begin(&user.identity)).transpose().map_err(|source| FileError::Act { source })?;
    let answer = match request {
        FileRequest::Read(request) => return read::read(peer, request),
        FileRequest::Write(request) => return write::write(peer, request),
        FileRequest::List(request) => return list::list(peer, request),
        FileRequest::Stat(request) => Reply::File(info::of(request.path.as_str())?),
        FileRequest::MakeDir(request) => Reply::File(place::make_dir(request)?),
        FileRequest::Move(request) => Reply::File(place::move_file(request)?),
        FileRequest::Remove(request) => {
            remove::remove(request)?;
            Reply::Done
        }
    };
    Ok(peer.reply(&answer)?)
}

fn find_user(spec: &str) -> Result<crate::users::User, FileError> {
    let users = Users::read().map_err(|source| FileError::Act { source })?;
    Ok(users.find(spec)?)
}
