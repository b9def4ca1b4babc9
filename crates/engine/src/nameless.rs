//! A file without a name that one process writes and others, who must not change it, are to read.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

/// A file, opened twice.
#[derive(Debug)]
pub(crate) struct Nameless {
    /// For reading and writing.
    pub(crate) written: File,
    /// For reading only. Who has no more than this, and no way to open anything, can never write to it.
    pub(crate) read: File,
}

/// Makes an empty one, on the disk that this directory is on.
pub(crate) fn make(dir: &Path) -> io::Result<Nameless> {
    let written = tempfile::tempfile_in(dir)?;
    Ok(Nameless { read: reopen(&written)?, written })
}

/// Opens a file once more, for reading only.
pub(crate) fn reopen(file: impl AsFd) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_one_writes_the_other_reads_and_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let Nameless { written, read } = make(dir.path()).unwrap();
        written.write_all_at(b"memory", 4096).unwrap();
        let mut found = [0; 6];
        read.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!(&found, b"memory");
        let refused = read.write_all_at(b"x", 0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::BADF.raw_os_error()));
        assert!(read.set_len(0).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
