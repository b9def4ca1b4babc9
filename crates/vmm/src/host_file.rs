//! Opening the files a specification names. What is behind a name may be anything, and this process must not wait for
//! it: a pipe nobody writes to would keep the VM from ever being built, or refused.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file that is read once, from its beginning to its end.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    open(path, FileType::is_file, "it is not a regular file")
}

/// Opens what can be a disk's contents.
pub(crate) fn open_image(path: &Path) -> io::Result<File> {
    let is_image = |kind: &FileType| kind.is_file() || kind.is_block_device();
    open(path, is_image, "it is neither a regular file nor a block device")
}

fn open(path: &Path, fits: impl Fn(&FileType) -> bool, otherwise: &'static str) -> io::Result<File> {
    // Opening a pipe waits for its other end without the flag; to regular files and disks the flag means nothing.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if fits(&file.metadata()?.file_type()) { Ok(file) } else { Err(io::Error::other(otherwise)) }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};

    use super::*;

    #[test]
    fn a_pipe_a_directory_and_a_character_device_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mknodat(CWD, &pipe, Kind::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [&pipe, dir.path(), Path::new("/dev/null")] {
            assert_eq!(open_regular(path).unwrap_err().to_string(), "it is not a regular file");
            let error = open_image(path).unwrap_err();
            assert_eq!(error.to_string(), "it is neither a regular file nor a block device");
        }
    }

    #[test]
    fn a_file_is_opened_and_a_missing_one_named_as_such() {
        let file = tempfile::NamedTempFile::new().unwrap();
        open_regular(file.path()).unwrap();
        open_image(file.path()).unwrap();
        assert_eq!(open_regular(Path::new("/no/such")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
