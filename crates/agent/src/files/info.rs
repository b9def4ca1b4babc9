//! What a file is.

use std::path::Path;

use proto::guest::{FileInfo, FileKind};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, CWD, FileType, Stat};
use rustix::io::Errno;

use super::{FileError, doing};

/// The file of this path; a link is not followed.
pub(super) fn of(path: &str) -> Result<FileInfo, FileError> {
    at(CWD, Path::new(path), path).map_err(doing("look at", path))
}

/// A file of a directory, known to the client by its whole path.
pub(super) fn at(directory: impl AsFd, name: &Path, path: &str) -> Result<FileInfo, Errno> {
    let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let target = match kind(&stat) {
        FileKind::Symlink => {
            let target = rustix::fs::readlinkat(&directory, name, Vec::new())?;
            Some(target.to_string_lossy().into_owned())
        }
        FileKind::File | FileKind::Dir | FileKind::Other => None,
    };
    Ok(describe(&stat, path, target))
}

/// What the system says of a file.
pub(super) fn describe(stat: &Stat, path: &str, target: Option<String>) -> FileInfo {
    FileInfo {
        path: path.into(),
        kind: kind(stat),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime_unix_ms: stat.st_mtime.saturating_mul(1000).saturating_add(
            // Below a thousand million.
            i64::try_from(stat.st_mtime_nsec / 1_000_000).unwrap_or(0),
        ),
        target,
    }
}

pub(super) fn kind(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Dir,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}
