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
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, syncfs};
use rustix::io::Errno;
use types::progress::Progress;

use crate::tool::Tool;

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

    /// The thing called `key`, which is the file `<key>.<extension>`; made if it is not there. `make` gets an empty staging
    /// area and returns the finished file in it.
    pub(crate) fn find_or_make<E: From<CacheError>>(
        &self,
        key: &str,
        extension: &str,
        progress: &dyn Progress,
        make: impl FnOnce(&Staging<'_>) -> Result<PathBuf, E>,
    ) -> Result<PathBuf, E> {
        let name = format!("{key}.{extension}");
        let path = self.path(&name);
        if path.is_file() {
            return Ok(path);
        }
        let turn = self.lock(key, progress)?;
        if path.is_file() {
            return Ok(path);
        }
        let staging = turn.stage()?;
        let made = make(&staging)?;
        Ok(staging.publish(&made, &name)?)
    }

    /// Waits until nobody else makes the thing called `key`. Look for the thing again after that.
    pub(crate) fn lock(&self, key: &str, progress: &dyn Progress) -> Result<Turn<'_>, CacheError> {
        let path = self.dir.join(format!("{key}.lock"));
        let failed = |err: Errno| CacheError::new("lock", &path)(err.into());
        let lock = open_lock(&path)?;
        if !try_lock(&lock).map_err(failed)? {
            let _waiting = progress.stage("Waiting for another build of the same", None);
            rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive)).map_err(failed)?;
        }
        if let Err(err) = self.sweep() {
            log::warn!("cannot remove what dead builders left: {err}: {}", err.source);
        }
        Ok(Turn { bucket: self, key: key.into(), lock })
    }

    /// Removes the staging areas of other things whose builders are gone.
    fn sweep(&self) -> Result<(), CacheError> {
        let entries = fs::read_dir(&self.dir).map_err(CacheError::new("list", &self.dir))?;
        let areas = entries.flatten().map(|entry| entry.path());
        for area in areas.filter(|path| path.extension() == Some("staging".as_ref())) {
            let lock = open_lock(&area.with_extension("lock"))?;
            if try_lock(&lock).map_err(|err| CacheError::new("lock", &area)(err.into()))? {
                remove_tree(&area).map_err(CacheError::new("remove", &area))?;
            }
        }
        Ok(())
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
        remove_tree(&path).map_err(CacheError::new("remove the stale", &path))?;
        let mut private = fs::DirBuilder::new();
        private.mode(0o700).create(&path).map_err(CacheError::new("create the directory", &path))?;
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

/// Removes a directory with all that is in it, but never follows a mount: what is mounted is not ours to remove.
fn remove_tree(path: &Path) -> io::Result<()> {
    let real = match fs::canonicalize(path) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        real => real?,
    };
    if let Some(mounted) = mounts()?.into_iter().find(|mount| mount.starts_with(&real)) {
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, format!("{} is mounted", mounted.display())));
    }
    match fs::remove_dir_all(path) {
        // Files of subordinate users, made by a contained tool; so one must remove them.
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            let mut tool = Tool::contained("rm", "coreutils").map_err(io::Error::other)?;
            tool.command().args(["-rf", "--one-file-system", "--"]).arg(path);
            tool.run(&mut |_| ()).map_err(io::Error::other)
        }
        done => done,
    }
}

/// Where something is mounted: the fifth field of each line (proc_pid_mountinfo(5)).
fn mounts() -> io::Result<Vec<PathBuf>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let points = table.split(|b| *b == b'\n').filter_map(|line| line.split(|b| *b == b' ').nth(4));
    Ok(points.map(unescape).collect())
}

/// The kernel writes space, tab, newline and backslash as `\040` and so on.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

fn open_lock(path: &Path) -> Result<File, CacheError> {
    let open = File::options().create(true).truncate(false).write(true).open(path);
    open.map_err(CacheError::new("create", path))
}

fn try_lock(file: &File) -> Result<bool, Errno> {
    match rustix::io::retry_on_intr(|| flock(file, FlockOperation::NonBlockingLockExclusive)) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        done => done.map(|()| true),
    }
}

#[cfg(test)]
mod tests;
