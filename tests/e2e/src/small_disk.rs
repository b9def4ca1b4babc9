//! A disk that is soon full.

#![expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use rustix::mount::{MountFlags, UnmountFlags};

const CHUNK: usize = 1 << 16;

/// A file system of so many bytes; gone when dropped.
#[derive(Debug)]
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn mount(path: PathBuf, bytes: u64) -> Result<Self> {
        fs::create_dir_all(&path)?;
        rustix::mount::mount("tmpfs", &path, "tmpfs", MountFlags::empty(), Some(&*size(bytes)?))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes room.
    pub(crate) fn grow(&self, bytes: u64) -> Result<()> {
        Ok(rustix::mount::mount_remount(&self.0, MountFlags::empty(), &*size(bytes)?)?)
    }

    /// So many bytes are in use.
    pub(crate) fn used(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(&self.0)?;
        Ok((stat.f_blocks - stat.f_bfree) * stat.f_frsize)
    }

    /// Takes all the room that is left; it is given back when this file is removed.
    pub(crate) fn fill(&self) -> Result<PathBuf> {
        let path = self.0.join("filler");
        let mut file = File::create(&path)?;
        loop {
            match file.write(&[1; CHUNK]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(path),
                Err(error) => bail!("{}: {error}", path.display()),
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.0, UnmountFlags::DETACH) {
            eprintln!("{} is left mounted: {error}", self.0.display());
        }
    }
}

fn size(bytes: u64) -> Result<CString> {
    Ok(CString::new(format!("size={bytes}"))?)
}
