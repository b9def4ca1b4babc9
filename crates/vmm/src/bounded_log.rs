//! The process's own log, which a guest cannot make grow for ever: devices, and the crates they are built from, complain
//! about what a driver does, and a driver can do it again and again.

use std::io::{self, Write};

/// More than anybody reads of the log of one VM.
const LIMIT: usize = 1 << 20;
const LAST_LINE: &[u8] = b"[forkd: this log is full, nothing more is written]\n";

/// Passes on the first [`LIMIT`] bytes, whole lines of them, and swallows what comes after.
#[derive(Debug)]
pub(crate) struct BoundedLog<W> {
    to: W,
    left: usize,
}

impl<W> BoundedLog<W> {
    /// Begins a log at the end of `to`.
    pub(crate) const fn new(to: W) -> Self {
        Self { to, left: LIMIT }
    }
}

impl<W: Write> Write for BoundedLog<W> {
    /// Each call has one line of the log.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self.left.checked_sub(line.len()) {
            Some(left) => {
                self.to.write_all(line)?;
                self.left = left;
            }
            None if self.left > 0 => {
                self.left = 0;
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
    }
}
