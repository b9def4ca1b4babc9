//! Files that a VMM was handed to write, at the moment when the store takes them.
//!
//! A VMM may have been taken over by its guest, and could have kept a descriptor by which it writes to a layer that others
//! will read. Whoever has the file by then has it for good, so it is found out before.

use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::{nameless, sys};

/// How long whoever handed the files on, as a template does to its writer, may take to close its own; it does so at once,
/// but a busy host may not let it.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// Closes files that nobody else may write to any more. An error when somebody could.
pub(crate) fn close(files: Vec<File>) -> io::Result<()> {
    close_within(files, PATIENCE)
}

fn close_within(files: Vec<File>, patience: Duration) -> io::Result<()> {
    let until = Instant::now() + patience;
    for file in files {
        let read = nameless::reopen(&file)?;
        drop(file);
        while sys::has_writers(&read)? {
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "whoever wrote it holds on to its files"));
            }
            thread::sleep(PAUSE);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_can_still_write_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let make = || File::create_new(dir.path().join("layer")).unwrap();
        let (file, other) = (make(), File::open(dir.path().join("layer")).unwrap());
        let kept = file.try_clone().unwrap();
        assert_eq!(close_within(vec![file], PAUSE).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        close(vec![kept]).unwrap();
        drop(other);
    }

    #[test]
    fn who_is_slow_to_close_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create_new(dir.path().join("layer")).unwrap();
        let kept = file.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(10 * PAUSE);
                drop(kept);
            });
            close(vec![file]).unwrap();
        });
    }
}
