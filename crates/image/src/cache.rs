//! A directory of finished things, each made once.
//!
//! ```text
//! images-v1/
//!     debian-0123456789abcdef.ext4      finished: staged, synced, renamed
//!     debian-0123456789abcdef.lock      who holds its flock may make the thing; never removed
//!     debian-0123456789abcdef.staging/  of who holds the lock
//! ```
//!
//! The programs a builder runs inherit the lock. So a lock nobody holds means that the builder *and* everything it
//! started are gone, and a staging directory without a holder is garbage: whoever locks next removes it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, syncfs};
use rustix::io::Errno;
use types::progress::Progress;

/// Something in the cache could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct CacheError {
    pub(crate) action: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) source: io::Error,
}

impl CacheError {
    pub(crate) fn new(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

/// One directory below the cache; its name carries the version of its layout.
pub(crate) struct Bucket {
    dir: PathBuf,
}

impl Bucket {
    pub(crate) fn open(cache: &Path, name: &str) -> Result<Self, CacheError> {
        let dir = cache.join(name);
        fs::create_dir_all(&dir).map_err(CacheError::new("create the directory", &dir))?;
        Ok(Self { dir })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Waits until nobody else makes the thing called `key`. Look for the thing again after that.
    pub(crate) fn lock(&self, key: &str, progress: &dyn Progress) -> Result<Turn<'_>, CacheError> {
        let path = self.dir.join(format!("{key}.lock"));
        let failed = |err: Errno| CacheError::new("lock", &path)(err.into());
        let lock = open_lock(&path)?;
        if !try_lock(&lock).map_err(failed)? {
            let _waiting = progress.stage("Waiting for another build of the same", None);
            retry(|| flock(&lock, FlockOperation::LockExclusive)).map_err(failed)?;
        }
        self.sweep(key);
        Ok(Turn { bucket: self, key: key.into(), lock })
    }

    /// Removes what dead builders left. Nobody waits for this and nobody fails because of it.
    fn sweep(&self, mine: &str) {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(err) => return log::warn!("cannot look for stale files in {}: {err}", self.dir.display()),
        };
        for path in
            entries.flatten().map(|entry| entry.path()).filter(|path| path.extension() == Some("staging".as_ref()))
        {
            let swept = || -> io::Result<()> {
                if path.file_stem() != Some(mine.as_ref()) {
                    let lock = open_lock(&path.with_extension("lock")).map_err(|err| err.source)?;
                    if !try_lock(&lock)? {
                        return Ok(());
                    }
                    return remove_tree(&path);
                }
                remove_tree(&path)
            };
            if let Err(err) = swept() {
                log::warn!("cannot remove the stale {}: {err}", path.display());
            }
        }
    }
}

/// The right to make one thing.
pub(crate) struct Turn<'a> {
    bucket: &'a Bucket,
    key: String,
    lock: File,
}

impl Turn<'_> {
    /// An empty private directory, removed when dropped.
    pub(crate) fn stage(&self) -> Result<Staging<'_>, CacheError> {
        let path = self.bucket.dir.join(format!("{}.staging", self.key));
        let mut private = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut private, 0o700);
        private.create(&path).map_err(CacheError::new("create the directory", &path))?;
        Ok(Staging { turn: self, path })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Explicitly: a process left behind by a tool would otherwise go on holding what it inherited.
        if let Err(err) = flock(&self.lock, FlockOperation::Unlock) {
            log::warn!("cannot unlock {}: {err}", self.key);
        }
    }
}

/// Where a thing is made before it has its name.
pub(crate) struct Staging<'a> {
    turn: &'a Turn<'a>,
    path: PathBuf,
}

impl Staging<'_> {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The lock that the tools shall hold.
    pub(crate) fn lock(&self) -> &File {
        &self.turn.lock
    }

    /// Makes what lies at `staged` durable, then visible as `name`.
    pub(crate) fn publish(self, staged: &Path, name: &str) -> Result<PathBuf, CacheError> {
        let file = File::open(staged).map_err(CacheError::new("open", staged))?;
        let synced = if staged.is_dir() { syncfs(&file).map_err(io::Error::from) } else { file.sync_all() };
        synced.map_err(CacheError::new("sync", staged))?;
        let dir = &self.turn.bucket.dir;
        let path = dir.join(name);
        fs::rename(staged, &path).map_err(CacheError::new("put in place", &path))?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(CacheError::new("sync", dir))?;
        Ok(path)
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        if let Err(err) = remove_tree(&self.path) {
            log::warn!("cannot remove {}: {err}", self.path.display());
        }
    }
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        // Files of a user namespace's other users; only that namespace may remove them.
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            crate::debian::remove_as_namespace_root(path).map_err(io::Error::other)?;
            fs::remove_dir_all(path)
        }
        done => done,
    }
}

fn open_lock(path: &Path) -> Result<File, CacheError> {
    let open = File::options().create(true).truncate(false).write(true).open(path);
    open.map_err(CacheError::new("create", path))
}

fn try_lock(file: &File) -> Result<bool, Errno> {
    match retry(|| flock(file, FlockOperation::NonBlockingLockExclusive)) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        done => done.map(|()| true),
    }
}

fn retry(mut call: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(&mut call)
}

#[cfg(test)]
mod tests;
