//! The directory of one VM: `run/vms/<id>/` with its sockets and logs.
//!
//! It is removed when its owner drops it. An owner that was killed cannot, so each directory is locked while somebody
//! lives who needs it, and whoever makes the next one first removes those that nobody holds. A forked child's may have
//! somebody who has to know how the child ended: who that is sweeps it, and nobody else.
//!
//! ```text
//! run/vms/.lock            held while a directory is made or found dead, so that none is swept before it is locked
//! run/vms/vm-3f…/          flock held by the owner; the kernel lets go of it when the owner dies
//! run/vms/sb-66…-1b…/      a forked child's: shared flock on the file `state` in it, held by the child, which was handed
//!                          it, and by who makes it until it is made
//! ```

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::control::{STATE, VSOCK};
use rustix::fs::FlockOperation;

use crate::caller::MAX_SOCKET_PATH;
use crate::child::{Child, RecordV1};
use crate::childdir::bury;
use crate::random::{hex, random};

const PREFIX: &str = "vm-";
/// What the directories of forked children begin with.
pub(crate) const CHILD_PREFIX: &str = "sb-";
/// How long a dead child's process may take to be out of its control group.
const GROUP_PATIENCE: Duration = Duration::from_secs(1);

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
        sweep(run, |child| child.owner.is_some())?;
        let all = Guarded::enter(run)?;
        let (id, failed) = (random_id(), |source| VmDirError::Io { path: all.path.clone(), source });
        let id = id.map_err(failed)?;
        let path = all.make(&id)?;
        let dir = File::open(&path).map_err(failed)?;
        lock(&dir, FlockOperation::LockExclusive).map_err(failed)?;
        Ok(Self { id, path, _lock: dir })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join(VSOCK)
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

/// Where the VMs' directories are.
pub(crate) fn all_vms(run: &Path) -> PathBuf {
    run.join("vms")
}

/// The right to make directories, and to say that one is nobody's.
#[derive(Debug)]
pub(crate) struct Guarded {
    path: PathBuf,
    _lock: File,
}

impl Guarded {
    /// Waits for its turn, and makes the directory that holds them all.
    pub(crate) fn enter(run: &Path) -> Result<Self, VmDirError> {
        let path = all_vms(run);
        let failed = |source| VmDirError::Io { path: path.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
        let guard = File::create(path.join(".lock")).map_err(failed)?;
        lock(&guard, FlockOperation::LockExclusive).map_err(failed)?;
        Ok(Self { path, _lock: guard })
    }

    /// Makes one directory.
    pub(crate) fn make(&self, id: &str) -> Result<PathBuf, VmDirError> {
        let failed = |source| VmDirError::Io { path: self.path.clone(), source };
        let path = self.path.join(id);
        let socket = path.join(VSOCK);
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(VmDirError::TooLong { path: socket });
        }
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        Ok(path)
    }
}

/// Removes the directories that nobody holds, but those of children that are spared.
///
/// Whoever makes a directory waits only while one is looked at, and not while a dead process leaves its group.
pub(crate) fn sweep(run: &Path, is_spared: impl Fn(&RecordV1) -> bool) -> Result<(), VmDirError> {
    let all = all_vms(run);
    let entries = match fs::read_dir(&all) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.and_then(Iterator::collect::<io::Result<Vec<_>>>),
    };
    for entry in entries.map_err(|source| VmDirError::Io { path: all, source })? {
        let name = entry.file_name();
        let kind = Kind::of(&name.to_string_lossy());
        let swept = kind.map(|kind| sweep_one(run, &entry.path(), kind, &is_spared));
        // It is found again by the next sweep, and must not be in the way of the rest.
        if let Some(Err(error)) = swept {
            log::warn!("what is left of {} cannot be removed: {error}", name.display());
        }
    }
    Ok(())
}

/// Whose a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Vm,
    Child,
}

impl Kind {
    fn of(name: &str) -> Option<Self> {
        [(PREFIX, Self::Vm), (CHILD_PREFIX, Self::Child)]
            .into_iter()
            .find_map(|(prefix, kind)| name.starts_with(prefix).then_some(kind))
    }
}

fn sweep_one(run: &Path, path: &Path, kind: Kind, is_spared: impl Fn(&RecordV1) -> bool) -> io::Result<()> {
    if is_held(path)? || is_being_made(run, path)? {
        return Ok(());
    }
    match kind {
        Kind::Vm => remove(path),
        Kind::Child if Child::read_record(path).ok().flatten().is_some_and(|record| is_spared(&record)) => Ok(()),
        Kind::Child => bury(path, GROUP_PATIENCE),
    }
}

/// One that is being made is nobody's for an instant; who makes it has the guard then.
fn is_being_made(run: &Path, path: &Path) -> io::Result<bool> {
    let _guard = Guarded::enter(run).map_err(io::Error::other)?;
    is_held(path)
}

/// Whether somebody holds a directory, or the state in it if there is one; what is gone is held by nobody.
pub(crate) fn is_held(path: &Path) -> io::Result<bool> {
    let opened = match File::open(path.join(STATE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => File::open(path),
        opened => opened,
    };
    match opened {
        Ok(held) => match rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::AGAIN) => Ok(true),
            Err(error) => Err(error.into()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a directory that may be gone already.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a file that may be gone already.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn lock(file: &File, operation: FlockOperation) -> io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation)).map_err(io::Error::from)
}

fn random_id() -> io::Result<String> {
    Ok(format!("{PREFIX}{}", hex(&random::<6>()?)))
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
