//! Writes a cpio archive in the "newc" format, the one the kernel unpacks (Documentation/driver-api/early-userspace).
//!
//! Reproducible: no times, no owners, no inode numbers of the host. Entries appear in the order they are written, and
//! a directory must come before what is in it.

use std::io::{self, Write};

const TRAILER: &str = "TRAILER!!!";

/// What an entry is, as the upper bits of its mode.
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const CHAR_DEVICE: u32 = 0o020_000;

/// An archive under way; [`Cpio::finish`] ends it.
pub(crate) struct Cpio<W> {
    out: W,
    inode: u32,
}

#[derive(Default)]
struct Entry<'a> {
    mode: u32,
    links: u32,
    device: (u32, u32),
    data: &'a [u8],
}

impl<W: Write> Cpio<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, inode: 0 }
    }

    pub(crate) fn directory(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, &Entry { mode: DIRECTORY | 0o755, links: 2, ..Entry::default() })
    }

    pub(crate) fn file(&mut self, name: &str, permissions: u32, data: &[u8]) -> io::Result<()> {
        self.entry(name, &Entry { mode: FILE | permissions, links: 1, data, ..Entry::default() })
    }

    pub(crate) fn char_device(&mut self, name: &str, permissions: u32, device: (u32, u32)) -> io::Result<()> {
        self.entry(name, &Entry { mode: CHAR_DEVICE | permissions, links: 1, device, ..Entry::default() })
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.inode = 0;
        self.raw(0, TRAILER, &Entry { links: 1, ..Entry::default() })?;
        Ok(self.out)
    }

    fn entry(&mut self, name: &str, entry: &Entry<'_>) -> io::Result<()> {
        self.inode += 1;
        self.raw(self.inode, name, entry)
    }

    fn raw(&mut self, inode: u32, name: &str, entry: &Entry<'_>) -> io::Result<()> {
        let too_large = |_| io::Error::other(format!("{name} is too large for a cpio archive"));
        let size = u32::try_from(entry.data.len()).map_err(too_large)?;
        let name_size = u32::try_from(name.len() + 1).map_err(too_large)?;
        let (major, minor) = entry.device;
        // magic, then: inode, mode, uid, gid, links, mtime, size, device of the file (2), device it is (2), name, check
        let fields = [inode, entry.mode, 0, 0, entry.links, 0, size, 0, 0, major, minor, name_size, 0];
        self.out.write_all(b"070701")?;
        for field in fields {
            write!(self.out, "{field:08X}")?;
        }
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(b"\0")?;
        self.pad(6 + 13 * 8 + name.len() + 1)?;
        self.out.write_all(entry.data)?;
        self.pad(entry.data.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// What `cpio -itv` says of the archive: mode, owner, size or device, and name of each entry.
    pub(crate) fn listing(archive: &[u8]) -> Vec<String> {
        let mut cpio = Command::new("cpio")
            .args(["-itv", "--numeric-uid-gid", "--quiet"])
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = cpio.stdin.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || stdin.write_all(archive).unwrap());
            let output = cpio.wait_with_output().unwrap();
            assert!(output.status.success());
            let text = String::from_utf8(output.stdout).unwrap();
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        })
    }

    #[test]
    fn cpio_reads_what_we_write() {
        let mut cpio = Cpio::new(Vec::new());
        cpio.directory("dev").unwrap();
        cpio.char_device("dev/console", 0o600, (5, 1)).unwrap();
        for length in 0..5 {
            cpio.file(&"n".repeat(length + 1), 0o755, &vec![b'x'; length]).unwrap();
        }
        let archive = cpio.finish().unwrap();
        assert_eq!(archive.len() % 4, 0);
        assert_eq!(
            listing(&archive),
            [
                "drwxr-xr-x 2 0 0 0 Jan 1 1970 dev",
                "crw------- 1 0 0 5, 1 Jan 1 1970 dev/console",
                "-rwxr-xr-x 1 0 0 0 Jan 1 1970 n",
                "-rwxr-xr-x 1 0 0 1 Jan 1 1970 nn",
                "-rwxr-xr-x 1 0 0 2 Jan 1 1970 nnn",
                "-rwxr-xr-x 1 0 0 3 Jan 1 1970 nnnn",
                "-rwxr-xr-x 1 0 0 4 Jan 1 1970 nnnnn",
            ]
        );
    }

    #[test]
    fn the_same_entries_give_the_same_bytes() {
        let archive = || {
            let mut cpio = Cpio::new(Vec::new());
            cpio.file("init", 0o755, b"#!/bin/sh\n").unwrap();
            cpio.finish().unwrap()
        };
        assert_eq!(archive(), archive());
    }
}
