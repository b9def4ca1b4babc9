//! Where the machine's files are. The only code here that builds paths.
//!
//! ```text
//! <data>/machine/    data.raw         the disk that survives: what forkd keeps inside
//!                    transfer.raw     the disk that files come by; empty but for that moment
//! <cache>/machine/   digests.json     digests of pushed files, so that nothing is hashed twice
//! <run>/machine/     lock             held by whoever starts, stops or removes the machine
//!                    state.json       which process it is and what it was made of
//!                    token            what a client of its agent must know
//!                    initramfs.cpio   the agent, the modules and the token
//!                    qmp.sock         QEMU's monitor
//!                    console.log      what its kernel, its agent and QEMU itself said
//! ```

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use types::Dirs;

use crate::MachineError;

/// The monitor's socket, below the run directory. QEMU is started in that directory and names its files relatively,
/// because a unix socket's path may not be longer than 107 bytes and a user's directory may.
pub(crate) const QMP: &str = "qmp.sock";
/// The console's log, below the run directory.
pub(crate) const CONSOLE: &str = "console.log";
/// The initramfs, below the run directory.
pub(crate) const INITRAMFS: &str = "initramfs.cpio";

/// How often a directory or the lock in it may be removed under us before we stop believing it is by chance.
pub(crate) const MAX_REMOVALS: usize = 100;

/// The machine's directories.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) run: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) cache: PathBuf,
}

impl Layout {
    pub(crate) fn new(dirs: &Dirs) -> Self {
        let below = |dir: &Path| dir.join("machine");
        Self { run: below(&dirs.run), data: below(&dirs.data), cache: below(&dirs.cache) }
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.run.join("lock")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.run.join("state.json")
    }

    pub(crate) fn token(&self) -> PathBuf {
        self.run.join("token")
    }

    pub(crate) fn initramfs(&self) -> PathBuf {
        self.run.join(INITRAMFS)
    }

    pub(crate) fn qmp(&self) -> PathBuf {
        self.run.join(QMP)
    }

    pub(crate) fn console(&self) -> PathBuf {
        self.run.join(CONSOLE)
    }

    pub(crate) fn data_disk(&self) -> PathBuf {
        self.data.join("data.raw")
    }

    pub(crate) fn transfer_disk(&self) -> PathBuf {
        self.data.join("transfer.raw")
    }

    pub(crate) fn digests(&self) -> PathBuf {
        self.cache.join("digests.json")
    }

    /// Makes the run directory, for its owner alone: it holds the token.
    pub(crate) fn create_run(&self) -> Result<(), MachineError> {
        create(&self.run, 0o700)
    }

    pub(crate) fn create_data(&self) -> Result<(), MachineError> {
        create(&self.data, 0o700)
    }

    pub(crate) fn create_cache(&self) -> Result<(), MachineError> {
        create(&self.cache, 0o755)
    }

    /// Removes what belongs to a machine that runs no more, whole or half made. The console's log stays for whoever
    /// asks why.
    pub(crate) fn sweep(&self) -> Result<(), MachineError> {
        remove_file(&self.transfer_disk())?;
        self.empty_run(&[self.lock(), self.console()])
    }

    /// Removes the run directory, for the holder of the lock. The lock goes last: once it is gone another may have a
    /// new one, and what is in the directory then is theirs.
    pub(crate) fn remove_run(&self) -> Result<(), MachineError> {
        self.empty_run(&[self.lock()])?;
        remove_file(&self.lock())?;
        match fs::remove_dir(&self.run) {
            Err(source) if !matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
                Err(MachineError::Io { doing: "remove", path: self.run.clone(), source })
            }
            _ => Ok(()),
        }
    }

    fn empty_run(&self, but: &[PathBuf]) -> Result<(), MachineError> {
        let failed = |source| MachineError::Io { doing: "read", path: self.run.clone(), source };
        for entry in fs::read_dir(&self.run).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if !but.contains(&path) {
                remove_file(&path)?;
            }
        }
        Ok(())
    }
}

fn create(dir: &Path, mode: u32) -> Result<(), MachineError> {
    let mut result = Ok(());
    for _ in 0..MAX_REMOVALS {
        result = DirBuilder::new().recursive(true).mode(mode).create(dir);
        // It was there and was removed before it could be looked at, by a holder of the lock that ends.
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            break;
        }
    }
    result.map_err(MachineError::io("create", dir))
}

/// Removes a file that may be gone already.
pub(crate) fn remove_file(path: &Path) -> Result<(), MachineError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(MachineError::Io { doing: "remove", path: path.into(), source })
        }
        _ => Ok(()),
    }
}

/// Removes a directory with all it holds; it may be gone already.
pub(crate) fn remove_dir(path: &Path) -> Result<(), MachineError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(MachineError::Io { doing: "remove", path: path.into(), source })
        }
        _ => Ok(()),
    }
}
