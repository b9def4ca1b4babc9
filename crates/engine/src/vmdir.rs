//! The directory of one VM: `run/vms/<id>/` with its sockets and logs.
//!
//! It is removed when its owner drops it. An owner that was killed cannot, so each directory is locked while its owner
//! lives, and whoever makes the next one first removes those that nobody holds:
//!
//! ```text
//! run/vms/.lock            held while a directory is made or swept, so that none is swept before it is locked
//! run/vms/vm-3f…/          flock held by the owner; the kernel lets go of it when the owner dies
//! ```

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

const PREFIX: &str = "vm-";
/// The longest path a unix socket can have, its terminating zero not counted.
const MAX_SOCKET_PATH: usize = 107;
/// A guest's connection to a port of the host goes to `<socket>_<port>`.
const PORT_SUFFIX: usize = "_4294967295".len();

/// Why a VM has no directory.
#[derive(Debug, thiserror::Error)]
pub enum VmDirError {
    /// The system says no.
    #[error("cannot make a directory for the VM below {}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A socket's path would be cut short.
    #[error("{} is too long a path for a socket; set FORKD_HOME to a shorter one", path.display())]
    TooLong {
        /// The socket's path.
        path: PathBuf,
    },
}

/// A directory of our own; gone when dropped.
#[derive(Debug)]
pub(crate) struct VmDir {
    id: String,
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl VmDir {
    /// Makes a directory with a new random id, readable by nobody else.
    pub(crate) fn create(run: &Path) -> Result<Self, VmDirError> {
        let all = run.join("vms");
        let failed = |source| VmDirError::Io { path: all.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&all).map_err(failed)?;
        let guard = File::create(all.join(".lock")).map_err(failed)?;
        lock(&guard, FlockOperation::LockExclusive).map_err(failed)?;
        sweep(&all).map_err(failed)?;
        let id = random_id().map_err(failed)?;
        let path = all.join(&id);
        let socket = path.join("vsock.sock");
        if socket.as_os_str().len() + PORT_SUFFIX > MAX_SOCKET_PATH {
            return Err(VmDirError::TooLong { path: socket });
        }
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        let dir = File::open(&path).map_err(failed)?;
        lock(&dir, FlockOperation::NonBlockingLockExclusive).map_err(failed)?;
        Ok(Self { id, path, _lock: dir })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("vsock.sock")
    }

    pub(crate) fn console(&self) -> PathBuf {
        self.path.join("console.log")
    }

    pub(crate) fn vmm_log(&self) -> PathBuf {
        self.path.join("vmm.log")
    }
}

impl Drop for VmDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            log::warn!("{} is left behind: {error}", self.path.display());
        }
    }
}

/// Removes the directories whose owners are dead.
fn sweep(all: &Path) -> io::Result<()> {
    for entry in fs::read_dir(all)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        match File::open(&path) {
            Ok(dir) if lock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() => remove(&path)?,
            Ok(_) => {}
            // Its owner has just removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn lock(file: &File, operation: FlockOperation) -> io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation)).map_err(io::Error::from)
}

fn random_id() -> io::Result<String> {
    let mut bytes = [0; 6];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{PREFIX}{digits}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_is_private_and_goes_with_its_owner() {
        let run = tempfile::tempdir().unwrap();
        let dir = VmDir::create(run.path()).unwrap();
        let path = run.path().join("vms").join(dir.id());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(dir.id().len(), "vm-".len() + 12);
        fs::write(dir.console(), "text").unwrap();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn the_dead_are_swept_and_the_living_are_not() {
        let run = tempfile::tempdir().unwrap();
        let living = VmDir::create(run.path()).unwrap();
        let dead = run.path().join("vms/vm-0123456789ab");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("console.log"), "text").unwrap();
        let next = VmDir::create(run.path()).unwrap();
        assert!(!dead.exists());
        assert!(run.path().join("vms").join(living.id()).exists());
        assert_ne!(living.id(), next.id());
    }

    #[test]
    fn a_path_no_socket_can_have_is_refused_before_it_is_cut() {
        let run = tempfile::tempdir().unwrap();
        let deep = run.path().join("x".repeat(90));
        assert!(matches!(VmDir::create(&deep), Err(VmDirError::TooLong { .. })));
        assert_eq!(fs::read_dir(deep.join("vms")).unwrap().count(), 1, "only the lock file is there");
    }
}
