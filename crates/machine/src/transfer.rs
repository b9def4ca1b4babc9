//! The transfer disk: how bytes get into the machine.
//!
//! A read-only disk of the machine whose image we write to from outside, without the holes that files have. The machine
//! reads it at the speed of its disks: a hundred times that of its network. Whoever writes to it holds its lock. The
//! machine reads past its own cache, which knows nothing of us.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;
use types::progress::{Progress, Stage};

use crate::MachineError;
use crate::digest::Version;
use crate::extents::extents;
use crate::layout::Layout;
use crate::lock::flock;

/// The device's name inside.
pub(crate) const DEVICE: &str = "/dev/vdc";
/// What the disk can hold at once.
pub(crate) const SIZE: u64 = 64 << 30;
/// Parts of files begin and end at multiples of this. The machine copies in blocks of it and keeps those that are all
/// zeroes as holes.
pub(crate) const ALIGN: u64 = 256 << 10;
const CHUNK: usize = 1 << 20;
/// What the machine's own file system and its other work may need meanwhile.
const SLACK: u64 = 64 << 20;

/// Makes the disk's image, empty. Only while no machine runs.
pub(crate) fn create(layout: &Layout) -> Result<(), MachineError> {
    layout.create_data()?;
    let path = layout.transfer_disk();
    crate::layout::remove_file(&path)?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.and_then(|file| file.set_len(SIZE)).map_err(MachineError::io("create", &path))
}

/// A part of a file on the disk, in whole blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Where it begins on the disk.
    pub(crate) place: u64,
    /// Where it begins in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// The disk, held by us alone and emptied when dropped.
#[derive(Debug)]
pub(crate) struct Transfer<'a> {
    layout: &'a Layout,
    file: File,
    used: u64,
    /// Somebody else had it first, and may have brought what we are to bring.
    pub(crate) waited: bool,
}

impl<'a> Transfer<'a> {
    /// Waits for whoever has the disk now.
    pub(crate) fn acquire(layout: &'a Layout, progress: &dyn Progress) -> Result<Self, MachineError> {
        let path = layout.transfer_disk();
        let file = OpenOptions::new().write(true).open(&path).map_err(MachineError::io("open", &path))?;
        let waited = !flock(&file, &path, FlockOperation::NonBlockingLockExclusive)?;
        if waited {
            let _stage = progress.stage("waiting for another forkd that copies into the machine", None);
            flock(&file, &path, FlockOperation::LockExclusive)?;
        }
        empty(&file).map_err(MachineError::io("empty", &path))?;
        Ok(Self { layout, file, used: 0, waited })
    }

    /// Whether this computer can hold so many bytes more twice: on this disk, and on the machine's own.
    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), MachineError> {
        let dir = &self.layout.data;
        let stat = rustix::fs::statvfs(dir).map_err(io::Error::from).map_err(MachineError::io("look at", dir))?;
        let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
        let needed_bytes = bytes.saturating_mul(2).saturating_add(SLACK);
        if free_bytes >= needed_bytes {
            return Ok(());
        }
        Err(MachineError::NoSpace { dir: dir.clone(), free_bytes, needed_bytes })
    }

    /// Writes what is not a hole of a file to the disk and says where. The file must be the version given, before and
    /// after.
    pub(crate) fn write(
        &mut self,
        local: &Path,
        version: &Version,
        stage: &dyn Stage,
    ) -> Result<Vec<Placed>, MachineError> {
        let reading = |source| MachineError::Io { doing: "read", path: local.into(), source };
        let source = File::open(local).map_err(reading)?;
        let parts = extents(&source, version.size(), ALIGN).map_err(reading)?;
        let needed = parts.iter().map(|part| part.end - part.start).sum::<u64>();
        let limit_bytes = SIZE - self.used;
        if version.size() > SIZE || needed > limit_bytes {
            return Err(MachineError::TooLarge { path: local.into(), limit_bytes });
        }
        let mut placed = Vec::with_capacity(parts.len());
        let mut copied = 0;
        for part in parts {
            let within = part.start..part.end.min(version.size());
            self.copy(&source, within, copied, stage).map_err(|failure| match failure {
                // Cut short under us.
                Failure::Read(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    MachineError::Changed { path: local.into() }
                }
                Failure::Read(error) => reading(error),
                Failure::Write(source) => {
                    MachineError::Io { doing: "write", path: self.layout.transfer_disk(), source }
                }
            })?;
            let bytes = part.end - part.start;
            placed.push(Placed { place: self.used, offset: part.start, bytes });
            self.used += bytes;
            copied += bytes;
        }
        if Version::of(&source.metadata().map_err(reading)?) != *version {
            return Err(MachineError::Changed { path: local.into() });
        }
        Ok(placed)
    }

    /// Copies a part of a file to where the free part of the disk begins.
    fn copy(&self, source: &File, part: Range<u64>, before: u64, stage: &dyn Stage) -> Result<(), Failure> {
        let mut chunk = vec![0; CHUNK];
        let mut done = 0;
        while part.start + done < part.end {
            let left = part.end - part.start - done;
            let count = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
            source.read_exact_at(&mut chunk[..count], part.start + done).map_err(Failure::Read)?;
            self.file.write_all_at(&chunk[..count], self.used + done).map_err(Failure::Write)?;
            done += count as u64;
            stage.advance(before + done);
        }
        Ok(())
    }
}

enum Failure {
    Read(io::Error),
    Write(io::Error),
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        if let Err(error) = empty(&self.file) {
            log::warn!("{} stays as large as it is: {error}", self.layout.transfer_disk().display());
        }
    }
}

/// Gives the space back; what was there reads as zeroes.
fn empty(file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.set_len(SIZE)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use types::progress::Silent;

    use super::*;
    use crate::state::tests::layout;

    fn version(path: &Path) -> Version {
        Version::of(&fs::metadata(path).unwrap())
    }

    fn bytes_at(layout: &Layout, place: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        File::open(layout.transfer_disk()).unwrap().read_exact_at(&mut bytes, place).unwrap();
        bytes
    }

    #[test]
    fn files_lie_one_after_another_without_their_holes() {
        let (_home, layout) = layout();
        create(&layout).unwrap();
        let sparse = layout.run.join("sparse");
        let file = File::create(&sparse).unwrap();
        file.set_len(1 << 30).unwrap();
        file.write_all_at(b"begin", 0).unwrap();
        file.write_all_at(b"far", 700 << 20).unwrap();
        let small = layout.run.join("small");
        fs::write(&small, "small").unwrap();

        let mut transfer = Transfer::acquire(&layout, &Silent).unwrap();
        let at = |place, offset| Placed { place, offset, bytes: ALIGN };
        assert_eq!(transfer.write(&sparse, &version(&sparse), &Silent).unwrap(), [at(0, 0), at(ALIGN, 700 << 20)]);
        let place = 2 * ALIGN;
        assert_eq!(transfer.write(&small, &version(&small), &Silent).unwrap(), [at(place, 0)]);
        assert_eq!(transfer.write(&small, &version(&small), &Silent).unwrap(), [at(place + ALIGN, 0)]);
        assert_eq!(bytes_at(&layout, 0, 5), b"begin");
        assert_eq!(bytes_at(&layout, ALIGN, 3), b"far");
        assert_eq!(bytes_at(&layout, place, 6), b"small\0");
        drop(transfer);
        let meta = fs::metadata(layout.transfer_disk()).unwrap();
        assert_eq!((meta.len(), meta.blocks()), (SIZE, 0));
    }

    #[test]
    fn a_file_that_changed_or_does_not_fit_is_refused() {
        let (_home, layout) = layout();
        create(&layout).unwrap();
        let path = layout.run.join("f");
        fs::write(&path, "long enough").unwrap();
        let before = version(&path);
        fs::write(&path, "short").unwrap();
        let mut transfer = Transfer::acquire(&layout, &Silent).unwrap();
        let error = transfer.write(&path, &before, &Silent).unwrap_err();
        assert!(matches!(error, MachineError::Changed { .. }), "{error}");
        File::options().write(true).open(&path).unwrap().set_len(SIZE + 1).unwrap();
        let error = transfer.write(&path, &version(&path), &Silent).unwrap_err();
        assert!(matches!(error, MachineError::TooLarge { limit_bytes: SIZE, .. }), "{error}");
        transfer.check_room(0).unwrap();
        let error = transfer.check_room(u64::MAX).unwrap_err();
        assert!(matches!(error, MachineError::NoSpace { .. }), "{error}");
    }
}
