//! A client's bytes: written beside the file they shall be, and then put into its place.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use proto::codec::Channel;
use proto::guest::{FileInfo, Reply, WriteFile};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use super::{FileError, Trouble, doing, info, place};
use crate::peer::{Peer, PeerError};

/// Permissions of a file that was not there before.
const NEW_FILE: u32 = 0o644;

/// Takes bytes until the client says that these were all, and answers with what the file then is.
pub(super) fn write(peer: &mut Peer, request: &WriteFile) -> Result<(), Trouble> {
    let mode = request.mode.map(place::checked_mode).transpose()?;
    if request.parents {
        place::make_parents(request.path.as_str())?;
    }
    let mut beside = Beside::create(request.path.as_str())?;
    peer.reply(&Reply::Done)?;
    loop {
        let frame = peer.next_frame(None)?;
        match frame.channel {
            Channel::Stdin if frame.payload.is_empty() => break,
            Channel::Stdin => {
                beside.write(&frame.payload)?;
                peer.reply(&Reply::StdinCredit { bytes: frame.payload.len() as u64 })?;
            }
            found => return Err(PeerError::from(proto::codec::CodecError::Unexpected { found }).into()),
        }
    }
    let info = beside.finish(mode, request.user.is_none())?;
    Ok(peer.reply(&Reply::File(info))?)
}

/// A file that is not in its place yet; dropped, it is gone.
pub(super) struct Beside<'a> {
    path: &'a str,
    file: File,
    temporary: PathBuf,
    /// What it will replace.
    replaced: Option<Stat>,
    placed: bool,
}

impl<'a> Beside<'a> {
    /// Makes one for this path, which must not be a directory's.
    pub(super) fn create(path: &'a str) -> Result<Self, FileError> {
        let failed = doing("write", path);
        let (Some(parent), Some(_)) = (Path::new(path).parent(), Path::new(path).file_name()) else {
            return Err(failed(Errno::ISDIR));
        };
        let replaced = match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return Err(failed(Errno::ISDIR));
            }
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) if !path.ends_with('/') => None,
            Err(errno) => return Err(failed(errno)),
        };
        let temporary = parent.join(temporary_name().map_err(doing("write", path))?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&temporary, flags, Mode::from_raw_mode(0o600)).map_err(&failed)?;
        Ok(Self { path, file: file.into(), temporary, replaced, placed: false })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all(bytes).map_err(doing("write", self.path))
    }

    /// Where its bytes go.
    pub(super) const fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Puts it into its place. Without a mode, and if it shall, with what the file before it had.
    fn finish(self, mode: Option<u32>, keep_owner: bool) -> Result<FileInfo, FileError> {
        let regular = |stat: &&Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let replaced = self.replaced.as_ref().filter(regular);
        let mode = mode.or_else(|| Some(replaced?.st_mode & 0o7777)).unwrap_or(NEW_FILE);
        let owner = replaced.filter(|_| keep_owner).map(|stat| (stat.st_uid, stat.st_gid));
        self.place(mode, owner)
    }

    /// Puts it into its place, with these permissions and this owner.
    pub(super) fn place(mut self, mode: u32, owner: Option<(u32, u32)>) -> Result<FileInfo, FileError> {
        let failed = doing("write", self.path);
        if let Some((uid, gid)) = owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::fchown(&self.file, Some(uid), Some(gid)).map_err(&failed)?;
        }
        // After the owner: changing that takes the special bits away.
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode)).map_err(&failed)?;
        rustix::fs::rename(&self.temporary, self.path).map_err(&failed)?;
        self.placed = true;
        let stat = rustix::fs::fstat(&self.file).map_err(&failed)?;
        Ok(info::describe(&stat, self.path, None))
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        if !self.placed
            && let Err(errno) = rustix::fs::unlink(&self.temporary)
        {
            crate::console::say(format_args!("{} is left: {errno}", self.temporary.display()));
        }
    }
}

/// A name nobody has; as short as the shortest file system wants it.
fn temporary_name() -> io::Result<String> {
    let mut bytes = [0; 8];
    let count = rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    if count < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(format!(".forkd-{:016x}", u64::from_ne_bytes(bytes)))
}
