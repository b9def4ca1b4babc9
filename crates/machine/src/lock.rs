//! One at a time: whoever changes the machine holds the lock, and the kernel lets go of it for a process that dies.
//!
//! The file may be removed by its holder (`rm` leaves nothing behind), so a lock counts only while the file that was
//! locked is still the one at the path.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;
use types::progress::Progress;

use crate::MachineError;
use crate::layout::{Layout, MAX_REMOVALS};

/// The right to change the machine, until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock. Its holder is a live process whose own waits are bounded.
    pub(crate) fn acquire(layout: &Layout, progress: &dyn Progress) -> Result<Self, MachineError> {
        if let Some(lock) = Self::attempt(layout, FlockOperation::NonBlockingLockExclusive)? {
            return Ok(lock);
        }
        let _stage = progress.stage("waiting for another forkd that is at the machine", None);
        for _ in 0..MAX_REMOVALS {
            if let Some(lock) = Self::attempt(layout, FlockOperation::LockExclusive)? {
                return Ok(lock);
            }
        }
        let source = io::Error::other("the file is removed again and again");
        Err(MachineError::Io { doing: "lock", path: layout.lock(), source })
    }

    /// Whether somebody holds the lock now. Changes nothing.
    pub(crate) fn is_held(layout: &Layout) -> Result<bool, MachineError> {
        let path = layout.lock();
        match File::open(&path) {
            Ok(file) => Ok(!flock(&file, &path, FlockOperation::NonBlockingLockShared)?),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(MachineError::Io { doing: "open", path, source }),
        }
    }

    /// `None` when somebody else holds it, or when the file was removed while we waited.
    fn attempt(layout: &Layout, operation: FlockOperation) -> Result<Option<Self>, MachineError> {
        layout.create_run()?;
        let path = layout.lock();
        let failed = |source| MachineError::Io { doing: "lock", path: path.clone(), source };
        let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = match opened {
            // The whole directory was removed between its making and now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        if !flock(&file, &path, operation)? {
            return Ok(None);
        }
        let ours = file.metadata().map_err(failed)?;
        match fs::metadata(&path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => Ok(Some(Self { _file: file })),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

/// Whether the lock was got; without waiting, it may not be.
pub(crate) fn flock(file: &File, path: &Path, operation: FlockOperation) -> Result<bool, MachineError> {
    match rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation)) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(MachineError::Io { doing: "lock", path: path.into(), source: error.into() }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use types::Dirs;
    use types::progress::Silent;

    use super::*;

    #[test]
    fn only_one_holds_it_even_when_holders_remove_everything() {
        let home = tempfile::tempdir().unwrap();
        let layout = Layout::new(&Dirs::under(home.path()));
        let inside = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let lock = Lock::acquire(&layout, &Silent).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two held the lock");
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        layout.remove_run().unwrap();
                        drop(lock);
                    }
                });
            }
        });
    }

    #[test]
    fn asking_who_holds_it_makes_no_file_and_takes_nothing() {
        let home = tempfile::tempdir().unwrap();
        let layout = Layout::new(&Dirs::under(home.path()));
        assert!(!Lock::is_held(&layout).unwrap());
        assert!(!layout.run.exists());
        let lock = Lock::acquire(&layout, &Silent).unwrap();
        assert!(Lock::is_held(&layout).unwrap());
        drop(lock);
        assert!(!Lock::is_held(&layout).unwrap());
    }
}
