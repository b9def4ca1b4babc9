//! Staging directories: made and locked under one guard, swept when nobody holds their lock.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::StoreError;

const PREFIX: &str = ".staging-";

/// A name that nobody has.
pub(crate) fn staging_name() -> io::Result<String> {
    Ok(format!("{PREFIX}{}", random_hex::<8>()?))
}

/// So many random bytes in hex.
pub(crate) fn random_hex<const N: usize>() -> io::Result<String> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The right to change what has a name: to make, sweep and take away directories, and to add and remove layers. Makes
/// the store's own directory first.
pub(crate) fn guard(dir: &Path) -> Result<File, StoreError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(StoreError::io("create", dir))?;
    let path = dir.join(".lock");
    let guard = File::create(&path).map_err(StoreError::io("create", &path))?;
    lock(&guard, FlockOperation::LockExclusive).map_err(StoreError::io("lock", &path))?;
    Ok(guard)
}

/// Makes and locks a staging directory. The caller holds the guard.
pub(crate) fn make(dir: &Path) -> Result<(PathBuf, File), StoreError> {
    let failed = StoreError::io("make a directory in", dir);
    let path = dir.join(staging_name().map_err(&failed)?);
    DirBuilder::new().mode(0o700).create(&path).map_err(&failed)?;
    let opened = File::open(&path).map_err(&failed)?;
    // Whoever only looks whether somebody writes here is done at once.
    lock(&opened, FlockOperation::LockExclusive).map_err(&failed)?;
    Ok((path, opened))
}

/// The staging directories that somebody writes in.
pub(crate) fn living(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut living = Vec::new();
    for path in all(dir)? {
        if let Some(opened) = open(&path)?
            && lock(&opened, FlockOperation::NonBlockingLockShared).is_err()
        {
            living.push(path);
        }
    }
    Ok(living)
}

/// Looks at those that nobody writes in, and holds their lock meanwhile. The caller holds the guard.
pub(crate) fn each_dead(dir: &Path, mut visit: impl FnMut(&Path) -> Result<(), StoreError>) -> Result<(), StoreError> {
    for path in all(dir)? {
        if let Some(opened) = open(&path)?
            && lock(&opened, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            visit(&path)?;
        }
    }
    Ok(())
}

fn all(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let failed = StoreError::io("list", dir);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries.collect::<Result<Vec<_>, _>>().map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let staging = entries.iter().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    Ok(staging.map(fs::DirEntry::path).collect())
}

/// `None` when its writer has just removed or finished it.
fn open(path: &Path) -> Result<Option<File>, StoreError> {
    match File::open(path) {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("open", path)(error)),
    }
}

/// Removes a directory that may be gone already.
pub(crate) fn remove_tree(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// What the files in a directory of ours occupy.
pub(crate) fn occupied(path: &Path) -> Result<u64, StoreError> {
    let failed = StoreError::io("look at", path);
    let entries = fs::read_dir(path).map_err(&failed)?;
    entries.map(|entry| Ok(entry.and_then(|entry| entry.metadata()).map_err(&failed)?.blocks() * 512)).sum()
}

fn lock(file: &File, operation: FlockOperation) -> io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation)).map_err(io::Error::from)
}
