//! A tree removed, from its leaves up.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use proto::guest::RemoveFile;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{FileError, doing};

/// So many directories are open at once; a deeper tree is left as it is below them.
const MAX_DEPTH: usize = 512;
/// How often a directory is read again because somebody put something into it meanwhile.
const PATIENCE: usize = 16;

/// Removes what a path names.
pub(super) fn remove(request: &RemoveFile) -> Result<(), FileError> {
    let path = request.path.as_str();
    let failed = doing("remove", path);
    let (Some(parent), Some(name)) = (Path::new(path).parent(), Path::new(path).file_name()) else {
        return Err(FileError::NoName { path: path.into() });
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent, flags, Mode::empty()).map_err(&failed)?;
    let name = CString::new(name.as_bytes()).map_err(|_| failed(Errno::INVAL))?;
    if !is_dir(&parent, &name).map_err(&failed)? {
        return rustix::fs::unlinkat(&parent, &name, AtFlags::empty()).map_err(failed);
    }
    if request.recursive {
        return remove_tree(&parent, name, path);
    }
    rustix::fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR).map_err(failed)
}

fn is_dir(parent: &OwnedFd, name: &CStr) -> Result<bool, Errno> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// A directory that is being emptied.
struct Level {
    dir: Dir,
    fd: OwnedFd,
    name: CString,
    tries: usize,
}

fn remove_tree(parent: &OwnedFd, name: CString, path: &str) -> Result<(), FileError> {
    let failed = doing("remove what is in", path);
    let mut open = vec![enter(parent, name).map_err(&failed)?];
    while let Some(level) = open.last_mut() {
        let Some(name) = next(level).map_err(&failed)? else {
            leave(&mut open, parent).map_err(&failed)?;
            continue;
        };
        match rustix::fs::unlinkat(&level.fd, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                let below = enter(&level.fd, name).map_err(&failed)?;
                if open.len() >= MAX_DEPTH {
                    return Err(FileError::TooDeep { path: path.into(), limit: MAX_DEPTH });
                }
                open.push(below);
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(())
}

fn enter(above: impl AsFd, name: CString) -> Result<Level, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(above, &name, flags, Mode::empty())?;
    Ok(Level { dir: Dir::read_from(&fd)?, fd, name, tries: 0 })
}

/// The next name in a directory, its own and its parent's left out.
fn next(level: &mut Level) -> Result<Option<CString>, Errno> {
    while let Some(entry) = level.dir.read() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            return Ok(Some(name.into()));
        }
    }
    Ok(None)
}

/// Removes the deepest directory, which was read to its end; what was put there meanwhile is read again.
fn leave(open: &mut Vec<Level>, parent: &OwnedFd) -> Result<(), Errno> {
    let Some(mut level) = open.pop() else { return Ok(()) };
    let above = open.last().map_or(parent.as_fd(), |above| above.fd.as_fd());
    match rustix::fs::unlinkat(above, &level.name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(Errno::NOTEMPTY | Errno::EXIST) if level.tries < PATIENCE => {
            level.tries += 1;
            level.dir.rewind();
            open.push(level);
        }
        Err(errno) => return Err(errno),
    }
    Ok(())
}
