//! The unix socket: made so that only its owner may open it, and removed only while it is ours.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::serve::{ServeError, failed};

/// A socket that is ours.
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

impl Ours {
    /// Removes it, unless somebody has put another in its place.
    pub(crate) fn remove(&self) {
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

/// A socket that only its owner may open. One that nobody listens on any more makes room, and nothing else does.
pub(crate) fn listen(path: &Path) -> Result<(UnixListener, Ours), ServeError> {
    make_room(path)?;
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed("make", dir))?;
    }
    // Made elsewhere and moved, so that nobody can open it before it is only ours.
    let hidden = beside(path, ".new");
    make_room(&hidden)?;
    let listener = UnixListener::bind(&hidden).map_err(failed("listen on", path))?;
    fs::set_permissions(&hidden, Permissions::from_mode(0o600)).map_err(failed("protect", path))?;
    let made = fs::symlink_metadata(&hidden).map_err(failed("listen on", path))?;
    fs::rename(&hidden, path).map_err(failed("listen on", path))?;
    Ok((listener, Ours { path: path.into(), is: identity(&made) }))
}

/// Removes a socket that nobody listens on.
fn make_room(path: &Path) -> Result<(), ServeError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", path)(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(ServeError::NotASocket { path: path.into() }),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(ServeError::Running { path: path.into() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed("remove", path))
        }
        Err(error) => Err(failed("look at", path)(error)),
    }
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
        let (listener, ours) = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(listen(&path), Err(ServeError::Running { .. })), "somebody listens");
        drop(listener);
        let (_listener, new) = listen(&path).unwrap();
        ours.remove();
        assert!(path.exists(), "it is another's");
        new.remove();
        assert!(!path.exists());
        fs::write(&path, "precious").unwrap();
        assert!(matches!(listen(&path), Err(ServeError::NotASocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/nowhere", &path).unwrap();
        assert!(matches!(listen(&path), Err(ServeError::NotASocket { .. })), "wherever it leads");
    }
}
