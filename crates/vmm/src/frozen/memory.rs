//! The memory image: a sparse file with every page at its guest-physical address. What is a hole reads as zero.
//!
//! A template maps it privately, so all its children share the page cache. It is checked once, when the template starts:
//! from then on the file must not change, which the store takes care of.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};
use types::GuestMemorySize;
use virtio::GuestMem;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};
use xxhash_rust::xxh3::Xxh3;

use crate::memory::{self, Backing};

const PAGE: usize = 4096;
/// How much is looked at at once.
const CHUNK: usize = 2 << 20;
/// An image cannot be more ragged than this; bounds what a hostile file makes us hold.
const MAX_RUNS: usize = 1 << 20;

/// Where an image is not zero, and what its bytes there add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemoryMapV1 {
    /// Address and length of each piece, in ascending order, whole pages.
    pub(crate) runs: Vec<(u64, u64)>,
    /// Of all the pieces' bytes in order.
    pub(crate) checksum: String,
}

impl MemoryMapV1 {
    /// How much memory is not zero.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|(_, len)| len).sum()
    }

    /// Says why this cannot be the map of a guest of this size.
    pub(crate) fn check(&self, size: GuestMemorySize) -> Result<(), String> {
        let page = PAGE as u64;
        let ranges = memory::ranges(size);
        let mut end = 0;
        if self.runs.len() > MAX_RUNS {
            return Err("its memory is in too many pieces".to_owned());
        }
        for (start, len) in self.runs.iter().copied() {
            let fits = ranges.iter().any(|(from, all)| start >= *from && len <= *all && start - from <= all - len);
            if !fits || start < end || start % page != 0 || len % page != 0 || len == 0 {
                return Err(format!("its memory has an impossible piece at {start:#x}"));
            }
            end = start + len;
        }
        Ok(())
    }
}

/// How long the file of a guest's memory is.
pub(crate) fn file_len(size: GuestMemorySize) -> u64 {
    memory::ranges(size).last().map_or(0, |(start, len)| start + len)
}

/// Writes a guest's memory, which must not change meanwhile, into an empty file.
pub(crate) fn write(mem: &GuestMem, backing: Backing, to: &File) -> io::Result<MemoryMapV1> {
    let end = mem.iter().map(|region| region.start_addr().0 + region.len()).max().unwrap_or(0);
    to.set_len(end)?;
    let mut writer = Writer { to, runs: Vec::new(), hasher: Xxh3::new() };
    let touched = Touched::open(backing)?;
    let mut chunk = vec![0; CHUNK];
    for region in mem.iter() {
        let len = usize::try_from(region.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        for offset in (0..len).step_by(CHUNK) {
            let count = CHUNK.min(len - offset);
            let slice = region.get_slice(MemoryRegionAddress(offset as u64), count).map_err(io::Error::other)?;
            if !touched.any(slice.ptr_guard().as_ptr().addr(), count)? {
                continue;
            }
            slice.copy_to(&mut chunk[..count]);
            writer.chunk(region.start_addr().0 + offset as u64, &chunk[..count])?;
        }
    }
    Ok(MemoryMapV1 { runs: writer.runs, checksum: format!("{:016x}", writer.hasher.digest()) })
}

struct Writer<'a> {
    to: &'a File,
    runs: Vec<(u64, u64)>,
    hasher: Xxh3,
}

impl Writer<'_> {
    /// Writes the pages of a chunk that are not zero.
    fn chunk(&mut self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            let pages = bytes[at..].chunks(PAGE);
            let zero = pages.clone().take_while(|page| is_zero(page)).count();
            let full = pages.skip(zero).take_while(|page| !is_zero(page)).count();
            let start = at + zero * PAGE;
            let end = (start + full * PAGE).min(bytes.len());
            if full > 0 {
                self.run(address + start as u64, &bytes[start..end])?;
            }
            at = end.max(start);
        }
        Ok(())
    }

    fn run(&mut self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all_at(bytes, address)?;
        self.hasher.update(bytes);
        match self.runs.last_mut() {
            Some((start, len)) if *start + *len == address => *len += bytes.len() as u64,
            _ => self.runs.push((address, bytes.len() as u64)),
        }
        Ok(())
    }
}

fn is_zero(page: &[u8]) -> bool {
    page.iter().fold(0, |all, byte| all | byte) == 0
}

/// Which pages of this process were ever touched: anonymous memory that was not reads as zero, and need not be read.
struct Touched {
    pagemap: Option<File>,
}

impl Touched {
    /// An entry of the page map says "in memory" or "swapped out" in its two highest bits.
    const TOUCHED: u8 = 0b1100_0000;

    fn open(backing: Backing) -> io::Result<Self> {
        match backing {
            Backing::Anonymous => Ok(Self { pagemap: Some(File::open("/proc/self/pagemap")?) }),
            Backing::Image => Ok(Self { pagemap: None }),
        }
    }

    fn any(&self, address: usize, len: usize) -> io::Result<bool> {
        let Some(pagemap) = &self.pagemap else { return Ok(true) };
        let mut entries = vec![0; len.div_ceil(PAGE) * 8];
        pagemap.read_exact_at(&mut entries, (address / PAGE * 8) as u64)?;
        Ok(entries.chunks(8).any(|entry| entry[7] & Self::TOUCHED != 0))
    }
}

/// Says why a file is not the image that was written; reads all of it that is not a hole.
pub(crate) fn verify(map: &MemoryMapV1, size: GuestMemorySize, file: &File) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("its memory cannot be read: {error}");
    let (found, expected) = (file.metadata().map_err(unreadable)?.len(), file_len(size));
    if found != expected {
        return Err(format!("its memory has {found} bytes where {expected} were written"));
    }
    let mut hasher = Xxh3::new();
    let mut chunk = vec![0; CHUNK];
    for (start, len) in &map.runs {
        for offset in (0..*len).step_by(CHUNK) {
            let count = usize::try_from(*len - offset).unwrap_or(CHUNK).min(CHUNK);
            file.read_exact_at(&mut chunk[..count], start + offset).map_err(unreadable)?;
            hasher.update(&chunk[..count]);
        }
    }
    if format!("{:016x}", hasher.digest()) != map.checksum {
        return Err("its memory does not match its checksum".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    fn size() -> GuestMemorySize {
        "128M".parse().unwrap()
    }

    /// A guest that wrote a few pages, and its image.
    fn image() -> (GuestMem, File, MemoryMapV1) {
        let mem = memory::map(size()).unwrap();
        for address in [0x1000, 0x2fff, 0x20_0000, (128 << 20) - 1] {
            mem.write_obj(7_u8, GuestAddress(address)).unwrap();
        }
        mem.write_obj(0_u8, GuestAddress(0x50_0000)).unwrap();
        let file = tempfile::tempfile().unwrap();
        let map = write(&mem, Backing::Anonymous, &file).unwrap();
        (mem, file, map)
    }

    #[test]
    fn only_pages_that_are_not_zero_are_written() {
        let (_mem, file, map) = image();
        assert_eq!(map.runs, [(0x1000, 0x2000), (0x20_0000, 0x1000), ((128 << 20) - 0x1000, 0x1000)]);
        assert_eq!(map.bytes(), 0x4000);
        assert_eq!(file.metadata().unwrap().len(), 128 << 20);
        assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20, "the file is not sparse");
        assert_eq!(map.check(size()), Ok(()));
        assert_eq!(verify(&map, size(), &file), Ok(()));
    }

    #[test]
    fn a_mapped_image_is_the_memory_and_stays_as_it_was() {
        let (_mem, file, map) = image();
        let copy = memory::map_image(size(), &file).unwrap();
        assert_eq!(copy.read_obj::<u8>(GuestAddress(0x2fff)).unwrap(), 7);
        assert_eq!(copy.read_obj::<u8>(GuestAddress(0x3000)).unwrap(), 0);
        copy.write_obj(9_u8, GuestAddress(0x1000)).unwrap();
        copy.write_obj(9_u8, GuestAddress(0x9000)).unwrap();
        assert_eq!(verify(&map, size(), &file), Ok(()));
        let again = tempfile::tempfile().unwrap();
        let next = write(&copy, Backing::Image, &again).unwrap();
        assert_eq!(next.runs[..2], [(0x1000, 0x2000), (0x9000, 0x1000)]);
    }

    #[test]
    fn damage_is_found() {
        let (_mem, file, map) = image();
        file.write_all_at(&[8], 0x20_0000).unwrap();
        assert!(verify(&map, size(), &file).unwrap_err().contains("checksum"));
        file.set_len((128 << 20) - 1).unwrap();
        assert!(verify(&map, size(), &file).unwrap_err().contains("bytes"));
    }

    #[test]
    fn impossible_maps_are_refused() {
        let map = |runs: &[(u64, u64)]| MemoryMapV1 { runs: runs.to_vec(), checksum: String::new() };
        for runs in [
            &[(0x1001, 0x1000)][..],
            &[(0x1000, 0x800)],
            &[(0x1000, 0)],
            &[(0x2000, 0x1000), (0x1000, 0x1000)],
            &[(0x1000, 0x2000), (0x2000, 0x1000)],
            &[(128 << 20, 0x1000)],
            &[(0x1000, u64::MAX - 0xfff)],
            &[(u64::MAX - 0xfff, 0x1000)],
        ] {
            map(runs).check(size()).unwrap_err();
        }
        assert_eq!(map(&[]).check(size()), Ok(()));
    }
}
