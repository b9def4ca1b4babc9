//! Directories made, files moved.

use std::io;
use std::path::Path;

use proto::guest::{FileInfo, MakeDir, MoveFile};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::write::Beside;
use super::{FileError, doing, info};

/// Permissions of a directory nobody chose any for.
const NEW_DIR: u32 = 0o755;

pub(super) const fn checked_mode(mode: u32) -> Result<u32, FileError> {
    if mode <= 0o7777 { Ok(mode) } else { Err(FileError::Mode { mode }) }
}

/// Makes a directory.
pub(super) fn make_dir(request: &MakeDir) -> Result<FileInfo, FileError> {
    let path = request.path.as_str();
    let mode = checked_mode(request.mode.unwrap_or(NEW_DIR))?;
    if request.parents {
        make_parents(path)?;
    }
    match rustix::fs::mkdir(path, Mode::from_raw_mode(mode)) {
        // The mask of new files took some of it.
        Ok(()) => rustix::fs::chmod(path, Mode::from_raw_mode(mode)).map_err(doing("make", path))?,
        Err(Errno::EXIST) if request.parents && is_dir(path) => {}
        Err(errno) => return Err(doing("make", path)(errno)),
    }
    info::of(path)
}

/// Makes the directories above a path that are missing.
pub(super) fn make_parents(path: &str) -> Result<(), FileError> {
    let above: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
    // From the deepest that is there, so that nothing is tried where the user has no say.
    let missing = above.iter().take_while(|dir| matches!(rustix::fs::stat(**dir), Err(Errno::NOENT))).count();
    for dir in above[..missing].iter().rev() {
        match rustix::fs::mkdir(*dir, Mode::from_raw_mode(NEW_DIR)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(doing("make", &dir.to_string_lossy())(errno)),
        }
    }
    Ok(())
}

fn is_dir(path: &str) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Moves a file or a directory.
pub(super) fn move_file(request: &MoveFile) -> Result<FileInfo, FileError> {
    let (from, to) = (request.from.as_str(), request.to.as_str());
    let flags = if request.overwrite { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match rustix::fs::renameat_with(CWD, from, CWD, to, flags) {
        Ok(()) => {}
        Err(Errno::XDEV) => carry(request)?,
        // Which of the two is meant, the name that is there says best.
        Err(errno @ Errno::EXIST) => return Err(doing("move to", to)(errno)),
        Err(errno) => return Err(doing("move", from)(errno)),
    }
    info::of(to)
}

/// Moves a regular file to another file system: a copy, and then the end of the original.
fn carry(request: &MoveFile) -> Result<(), FileError> {
    let (from, to) = (request.from.as_str(), request.to.as_str());
    let failed = doing("move", from);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let source = rustix::fs::open(from, flags, Mode::empty()).map_err(&failed)?;
    let stat = rustix::fs::fstat(&source).map_err(&failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(failed(Errno::XDEV));
    }
    if !request.overwrite && rustix::fs::statat(CWD, to, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Err(doing("move to", to)(Errno::EXIST));
    }
    let mut beside = Beside::create(to)?;
    io::copy(&mut std::fs::File::from(source), beside.file()).map_err(doing("move", from))?;
    // Who is not root makes it its own, as `mv` does.
    let owner = rustix::process::geteuid().is_root().then_some((stat.st_uid, stat.st_gid));
    beside.place(stat.st_mode & 0o7777, owner.filter(|_| request.user.is_none()))?;
    rustix::fs::unlink(from).map_err(failed)
}
