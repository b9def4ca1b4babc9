//! A file's bytes, to a client.

use proto::codec::Channel;
use proto::guest::{FileKind, MAX_CHUNK, ReadFile, Reply};
use rustix::fs::{Mode, OFlags};

use super::{FileError, Trouble, doing, info};
use crate::peer::Peer;

/// Sends what the file is, its bytes, and that this was all.
pub(super) fn read(peer: &mut Peer, request: &ReadFile) -> Result<(), Trouble> {
    let path = request.path.as_str();
    // Opening a pipe would wait for a writer, and a terminal could become ours.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(doing("read", path))?;
    let stat = rustix::fs::fstat(&file).map_err(doing("read", path))?;
    match info::kind(&stat) {
        FileKind::File => {}
        FileKind::Dir => return Err(doing("read", path)(rustix::io::Errno::ISDIR).into()),
        FileKind::Symlink | FileKind::Other => return Err(FileError::NotAFile { path: path.into() }.into()),
    }
    peer.reply(&Reply::File(info::describe(&stat, path, None)))?;
    let mut chunk = vec![0; MAX_CHUNK];
    let (mut offset, mut left) = (request.offset, request.length.unwrap_or(u64::MAX));
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(MAX_CHUNK).min(MAX_CHUNK);
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut chunk[..most], offset));
        let count = match read {
            Ok(0) => break,
            // An offset that no file reaches is behind its end.
            Err(rustix::io::Errno::INVAL) if i64::try_from(offset).is_err() => break,
            read => read.map_err(doing("read", path))?,
        };
        peer.send_data(Channel::Stdout, &chunk[..count])?;
        offset = offset.saturating_add(count as u64);
        left -= count as u64;
    }
    Ok(peer.reply(&Reply::Done)?)
}
