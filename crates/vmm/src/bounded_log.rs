//! The process's own log, which a guest cannot make grow for ever: devices, and the crates they are built from, complain
//! about what a driver does, and a driver can do it again and again.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

/// More than anybody reads of the log of one VM.
const LIMIT: usize = 1 << 20;
/// How much of it this process's log still takes.
static LEFT: AtomicUsize = AtomicUsize::new(LIMIT);
const LAST_LINE: &[u8] = b"[forkd: this log is full, nothing more is written]\n";

/// Says that what is logged from now on goes to a log of its own: a copy of a process begins with all of its own limit,
/// however much the other one had logged.
pub(crate) fn begin_anew() {
    LEFT.store(LIMIT, Ordering::Relaxed);
}

/// Passes on the first [`LIMIT`] bytes, whole lines of them, and swallows what comes after.
#[derive(Debug)]
pub(crate) struct BoundedLog<W> {
    to: W,
    left: &'static AtomicUsize,
}

impl<W> BoundedLog<W> {
    /// This process's log, at the end of `to`.
    pub(crate) const fn new(to: W) -> Self {
        Self { to, left: &LEFT }
    }
}

impl<W: Write> Write for BoundedLog<W> {
    /// Each call has one line of the log; the logger makes one call at a time.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let before = self.left.load(Ordering::Relaxed);
        match before.checked_sub(line.len()) {
            Some(left) => {
                self.to.write_all(line)?;
                self.left.store(left, Ordering::Relaxed);
            }
            None if before > 0 => {
                self.left.store(0, Ordering::Relaxed);
                self.to.write_all(LAST_LINE)?;
            }
            None => {}
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_ends_in_one_last_line() {
        let mut kept = Vec::new();
        let mut log = BoundedLog::new(&mut kept);
        for number in 0..200_000 {
            log.write_all(format!("{number}: a driver broke its queue\n").as_bytes()).unwrap();
        }
        assert!(kept.starts_with(b"0: a driver broke its queue\n1: "));
        assert!(kept.ends_with(&[b"queue\n", LAST_LINE].concat()));
        assert!(kept.len() <= LIMIT + LAST_LINE.len());
        // What a copy of this process logs is not held against it.
        kept.clear();
        begin_anew();
        BoundedLog::new(&mut kept).write_all(b"a child speaks\n").unwrap();
        assert_eq!(kept, b"a child speaks\n");
    }
}
