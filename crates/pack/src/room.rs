//! How much fits on a disk.

use std::io;
use std::path::Path;

/// The bytes that are free where a directory is.
pub(crate) fn free(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
