//! What is below a directory, in pieces: neither side ever holds all of it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use proto::guest::{FileInfo, FileKind, ListFiles, MAX_LIST_DEPTH, Reply};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use super::{Trouble, doing, info};
use crate::peer::{Peer, PeerError};

/// So many bytes of paths go into one message. Escaped, and with a longest path behind them, they still fit.
const BATCH: usize = 16 << 10;
/// What an entry costs besides its texts.
const ENTRY: usize = 160;

/// Sends what is there until all of it is sent.
pub(super) fn list(peer: &mut Peer, request: &ListFiles) -> Result<(), Trouble> {
    let path = request.path.as_str();
    let depth = usize::try_from(request.depth.min(MAX_LIST_DEPTH)).unwrap_or(usize::MAX);
    let top = rustix::fs::open(path, directory(), Mode::empty()).and_then(Dir::new).map_err(doing("list", path))?;
    let mut batch = Batch::default();
    let mut open = vec![Level { dir: top, path: path.trim_end_matches('/').into() }];
    while let Some(level) = open.last_mut() {
        let entry = match level.dir.read() {
            None => {
                open.pop();
                continue;
            }
            Some(entry) => entry.map_err(doing("list", &level.path))?,
        };
        let name = entry.file_name();
        if name == c"." || name == c".." || depth == 0 {
            continue;
        }
        let path = format!("{}/{}", level.path, name.to_string_lossy());
        let name = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let directory_fd = level.dir.fd().map_err(doing("list", &level.path))?;
        let found = match info::at(directory_fd, name, &path) {
            Ok(found) => found,
            // It went while it was looked at.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(doing("list", &path)(errno).into()),
        };
        let below = if found.kind == FileKind::Dir && open.len() < depth { enter(&open, name) } else { None };
        batch.add(peer, found)?;
        open.extend(below.map(|dir| Level { dir, path }));
    }
    batch.flush(peer)?;
    Ok(peer.reply(&Reply::Done)?)
}

/// A directory that is being read.
struct Level {
    dir: Dir,
    path: String,
}

fn directory() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC
}

/// The directory of that name in the one that is read; none when it is gone or the user may not see what is in it.
fn enter(open: &[Level], name: &Path) -> Option<Dir> {
    let above = open.last()?.dir.fd().ok()?;
    rustix::fs::openat(above, name, directory() | OFlags::NOFOLLOW, Mode::empty()).and_then(Dir::new).ok()
}

/// Entries that wait to be sent.
#[derive(Default)]
struct Batch {
    files: Vec<FileInfo>,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, peer: &mut Peer, info: FileInfo) -> Result<(), PeerError> {
        self.bytes += ENTRY + info.path.len() + info.target.as_ref().map_or(0, String::len);
        self.files.push(info);
        if self.bytes < BATCH { Ok(()) } else { self.flush(peer) }
    }

    fn flush(&mut self, peer: &mut Peer) -> Result<(), PeerError> {
        let files = std::mem::take(&mut self.files);
        self.bytes = 0;
        if files.is_empty() { Ok(()) } else { peer.reply(&Reply::Files { files }) }
    }
}
