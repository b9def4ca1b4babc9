//! The unix socket: made so that only its owner may open it, and removed with us, and only while it is ours.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixSocket;

use crate::serve::{ServeError, failed};

/// A socket that is ours; removed when dropped.
#[derive(Debug)]
pub(crate) struct Ours {
    path: PathBuf,
    is: Identity,
}

/// Device, inode, and when it was made: an inode's number is soon somebody else's.
type Identity = (u64, u64, i64, i64);

fn identity(found: &fs::Metadata) -> Identity {
    (found.dev(), found.ino(), found.mtime(), found.mtime_nsec())
}

impl Drop for Ours {
    /// Removes it, unless somebody has put another in its place.
    fn drop(&mut self) {
        let removed = match fs::symlink_metadata(&self.path) {
            Ok(found) if identity(&found) == self.is => fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            log::warn!("{} is left behind: {error}", self.path.display());
        }
    }
}

/// A socket that only its owner may open, and nobody before it is listened on. One that nobody listens on any more makes
/// room, and nothing else does.
pub(crate) fn bind(path: &Path) -> Result<(UnixSocket, Ours), ServeError> {
    make_room(path)?;
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed("make", dir))?;
    }
    // Made elsewhere and moved, so that nobody can open it before it is only ours.
    let hidden = beside(path, ".new");
    make_room(&hidden)?;
    let socket = UnixSocket::new_stream().map_err(failed("listen on", path))?;
    socket.bind(&hidden).map_err(failed("listen on", path))?;
    fs::set_permissions(&hidden, Permissions::from_mode(0o600)).map_err(failed("protect", path))?;
    let made = fs::symlink_metadata(&hidden).map_err(failed("listen on", path))?;
    fs::rename(&hidden, path).map_err(failed("listen on", path))?;
    Ok((socket, Ours { path: path.into(), is: identity(&made) }))
}

/// Removes a socket that nobody listens on.
fn make_room(path: &Path) -> Result<(), ServeError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", path)(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(ServeError::NotASocket { path: path.into() }),
        Ok(_) => {}
    }
    match knock(path) {
        // One who has no time is there, too.
        Ok(()) | Err(Errno::AGAIN) => Err(ServeError::Running { path: path.into() }),
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed("remove", path)),
        Err(error) => Err(failed("look at", path)(error.into())),
    }
}

/// Whether somebody listens. Never waits for one who does not answer.
fn knock(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

/// The same path with more at its end.
pub(crate) fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_socket_that_nobody_listens_on_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (socket, ours) = bind(&path).unwrap();
        let listener = socket.listen(0).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // The second one finds the queue full.
        for _ in 0..3 {
            assert!(matches!(bind(&path), Err(ServeError::Running { .. })), "somebody listens");
        }
        drop(listener);
        let (socket, new) = bind(&path).unwrap();
        drop(ours);
        assert!(path.exists(), "it is another's");
        assert_eq!(knock(&path), Err(Errno::CONNREFUSED), "nobody listens yet");
        let _listener = socket.listen(1).unwrap();
        knock(&path).unwrap();
        drop(new);
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(ServeError::NotASocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &path).unwrap();
        assert!(matches!(bind(&path), Err(ServeError::NotASocket { .. })), "wherever it leads");
    }
}
