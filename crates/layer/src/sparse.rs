//! Files with holes: where their data is, and copying it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// How much is copied at once where the kernel does not copy by itself.
pub(crate) const COPY_CHUNK: usize = 256 << 10;

/// The size of a file or block device (whose metadata says 0).
pub(crate) fn file_len(mut file: &File) -> io::Result<u64> {
    io::Seek::seek(&mut file, io::SeekFrom::End(0))
}

/// Refuses a file that has something in it.
pub(crate) fn expect_empty(file: &File) -> io::Result<()> {
    match file_len(file)? {
        0 => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it can only be written into an empty file")),
    }
}

/// The parts of a range of a file that are no holes, in ascending order. They may be larger than what was written: a
/// file system has its own grain, and one without holes has all of it.
pub(crate) fn extents(file: &File, within: Range<u64>) -> impl Iterator<Item = io::Result<Range<u64>>> {
    let mut at = within.start;
    std::iter::from_fn(move || {
        if at >= within.end {
            return None;
        }
        let found = extent(file, at);
        // After an error there is no next one.
        at = found.as_ref().ok().and_then(|found| found.as_ref()).map_or(within.end, |extent| extent.end);
        let clip = |extent: Range<u64>| extent.start..extent.end.min(within.end);
        found.map(|extent| extent.map(clip).filter(|extent| !extent.is_empty())).transpose()
    })
}

/// The first part from here on that is no hole.
fn extent(file: &File, at: u64) -> io::Result<Option<Range<u64>>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Err(Errno::NXIO) => return Ok(None),
        start => start?,
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    if at <= start && start < end { Ok(Some(start..end)) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Copies parts of files to the same places of another.
#[derive(Debug)]
pub(crate) struct Copier<'f> {
    to: &'f File,
    /// Empty as long as the kernel copies by itself, which may be no more than sharing the blocks.
    buffer: Vec<u8>,
}

impl<'f> Copier<'f> {
    pub(crate) const fn new(to: &'f File) -> Self {
        Self { to, buffer: Vec::new() }
    }

    pub(crate) fn copy(&mut self, from: &File, mut part: Range<u64>) -> io::Result<()> {
        if self.buffer.is_empty() {
            part.start = self.copy_in_kernel(from, &part);
        }
        while part.start < part.end {
            self.buffer.resize(COPY_CHUNK, 0);
            let len = usize::try_from(part.end - part.start).map_or(COPY_CHUNK, |left| left.min(COPY_CHUNK));
            from.read_exact_at(&mut self.buffer[..len], part.start)?;
            self.to.write_all_at(&self.buffer[..len], part.start)?;
            part.start += u64::try_from(len).expect("at most a chunk");
        }
        Ok(())
    }

    /// Says how far it came. Which files the kernel copies between is not to be known beforehand, and an error that
    /// concerns the files themselves comes up again when they are read and written.
    fn copy_in_kernel(&self, from: &File, part: &Range<u64>) -> u64 {
        let mut at = part.start;
        while at < part.end {
            let len = usize::try_from(part.end - at).unwrap_or(usize::MAX);
            let (mut from_at, mut to_at) = (at, at);
            match rustix::fs::copy_file_range(from, Some(&mut from_at), self.to, Some(&mut to_at), len) {
                Ok(count @ 1..) => at += u64::try_from(count).expect("usize fits in u64"),
                Ok(0) | Err(_) => break,
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn where_the_kernel_does_not_copy_we_do() {
        let bytes: Vec<u8> = (0..3 * COPY_CHUNK).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let (mut from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.write_all(&bytes).unwrap();
        let end = bytes.len() - 5;
        let mut copier = Copier { to: &to, buffer: vec![0; COPY_CHUNK] };
        copier.copy(&from, 10..u64::try_from(end).unwrap()).unwrap();
        let mut copied = vec![1; end];
        to.read_exact_at(&mut copied, 0).unwrap();
        assert!(copied[..10] == [0; 10] && copied[10..] == bytes[10..end]);
        // A directory is something the kernel does not copy to.
        let elsewhere = File::open(std::env::temp_dir()).unwrap();
        Copier::new(&elsewhere).copy(&from, 0..10).unwrap_err();
        // What is not there cannot be copied either.
        Copier::new(&to).copy(&from, 0..u64::try_from(bytes.len()).unwrap() + 1).unwrap_err();
    }

    #[test]
    fn extents_are_where_something_was_written() {
        let file = tempfile::tempfile().unwrap();
        let all = |range| extents(&file, range).collect::<io::Result<Vec<_>>>().unwrap();
        assert_eq!(all(0..100), []);
        file.set_len(16 << 20).unwrap();
        assert_eq!(all(0..16 << 20), []);
        file.write_all_at(&[1; 4096], 4 << 20).unwrap();
        file.write_all_at(&[1; 4096], 8 << 20).unwrap();
        let found = all(0..16 << 20);
        for place in [4 << 20, 8 << 20] {
            assert!(found.iter().any(|extent| extent.contains(&place)), "{found:?}");
        }
        assert!(!found.iter().any(|extent| extent.contains(&0)), "{found:?}");
        let within = (4 << 20) + 10..(4 << 20) + 20;
        assert_eq!(all(within.clone()), vec![within]);
    }
}
