//! Staging directories: made and locked under one guard, swept when nobody holds their lock.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

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

/// The right to make, sweep and take away directories; makes the store's own directory first.
pub(crate) fn guard(dir: &Path) -> Result<File, StoreError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(StoreError::io("create", dir))?;
    let path = dir.join(".lock");
    let guard = File::create(&path).map_err(StoreError::io("create", &path))?;
    lock(&guard, FlockOperation::LockExclusive).map_err(StoreError::io("lock", &path))?;
    Ok(guard)
}

/// Makes and locks a staging directory, after removing those of dead writers.
pub(crate) fn make(dir: &Path) -> Result<(std::path::PathBuf, File), StoreError> {
    let _guard = guard(dir)?;
    sweep(dir)?;
    let failed = StoreError::io("make a directory in", dir);
    let path = dir.join(staging_name().map_err(&failed)?);
    DirBuilder::new().mode(0o700).create(&path).map_err(&failed)?;
    let opened = File::open(&path).map_err(&failed)?;
    lock(&opened, FlockOperation::NonBlockingLockExclusive).map_err(&failed)?;
    Ok((path, opened))
}

fn sweep(dir: &Path) -> Result<(), StoreError> {
    let failed = StoreError::io("list", dir);
    for entry in fs::read_dir(dir).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        match File::open(entry.path()) {
            Ok(opened) if lock(&opened, FlockOperation::NonBlockingLockExclusive).is_ok() => {
                remove_tree(&entry.path())?;
            }
            Ok(_) => {}
            // Its writer has just removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::io("open", &entry.path())(error)),
        }
    }
    Ok(())
}

/// Removes a directory that may be gone already.
pub(crate) fn remove_tree(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

fn lock(file: &File, operation: FlockOperation) -> io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation)).map_err(io::Error::from)
}
