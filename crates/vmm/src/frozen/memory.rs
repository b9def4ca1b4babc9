//! A guest's memory as a layer: all of it that is not zero, or what differs from the memory of a parent.
//!
//! Which pages a guest made its own the process's page table says: in a private mapping, a page that was written is no
//! longer the file's. All others are still what the image says, so they need no look. Those that are its own are compared
//! with the parent: what was written back as it was is not stored.
//!
//! The page map is given: a confined process cannot open its own. It is that of this process, or of the one that this is a
//! copy of, whose pages are the same for as long as it leaves them alone.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use layer::{BLOCK_BYTES, Stack, Writer};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

use crate::memory::GuestRam;

const PAGE: usize = 4096;
/// How many pages are looked at at once.
const CHUNK_PAGES: usize = 4096;
/// How many pages are handed on at once.
const RUN_PAGES: usize = 256;

/// Writes all memory that is not zero into an empty file; how many bytes these are. The memory must not change meanwhile.
pub(crate) fn write_all(ram: &GuestRam, page_map: &File, to: &File) -> io::Result<u64> {
    let mut writer = Writer::create(to, length(ram))?;
    let image = ram.image.as_deref().map_or_else(|| Ok(Vec::new()), |image| extents(image, length(ram)))?;
    let wanted = |entry: Entry, address: u64| entry.is_own() || lies_in(&image, address);
    visit(ram, page_map, wanted, |block, bytes| {
        pick(block, bytes, |_, page| Ok(page.iter().any(|byte| *byte != 0)), |block, pages| writer.put(block, pages))
    })?;
    Ok(writer.finish()?.stats.data_bytes)
}

/// Writes what differs from the parent's memory into an empty file; how many bytes these are. The guest's memory must be a
/// descendant of the parent's: what it did not write is as it was there.
pub(crate) fn write_diff(ram: &GuestRam, page_map: &File, parent: &Stack, to: &File) -> io::Result<u64> {
    let mut writer = Writer::create(to, length(ram))?;
    let mut before = vec![0; PAGE];
    visit(
        ram,
        page_map,
        |entry, _| entry.is_own(),
        |block, bytes| {
            let differs = |block, page: &[u8]| {
                parent.read_at(&mut before, block * BLOCK_BYTES)?;
                Ok(page != before)
            };
            pick(block, bytes, differs, |block, pages| writer.put(block, pages))
        },
    )?;
    Ok(writer.finish()?.stats.data_bytes)
}

fn length(ram: &GuestRam) -> u64 {
    ram.mem.iter().map(|region| region.start_addr().0 + region.len()).max().unwrap_or(0)
}

/// What the page map says of a page.
#[derive(Clone, Copy)]
struct Entry(u64);

impl Entry {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const OF_A_FILE: u64 = 1 << 61;

    /// Whether the page is the process's own and nobody else's copy of it.
    const fn is_own(self) -> bool {
        self.0 & Self::SWAPPED != 0 || self.0 & Self::PRESENT != 0 && self.0 & Self::OF_A_FILE == 0
    }
}

/// Shows the pages that are wanted, some that lie together at a time. A page is asked for by its entry and address, and
/// shown by its number.
fn visit(
    ram: &GuestRam,
    page_map: &File,
    wanted: impl Fn(Entry, u64) -> bool,
    mut show: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let (mut entries, mut bytes) = (vec![0; CHUNK_PAGES * size_of::<u64>()], vec![0; RUN_PAGES * PAGE]);
    for region in ram.mem.iter() {
        let (start, pages) = (region.start_addr().0, usize::try_from(region.len() / BLOCK_BYTES).unwrap_or(usize::MAX));
        for first in (0..pages).step_by(CHUNK_PAGES) {
            let entries = &mut entries[..CHUNK_PAGES.min(pages - first) * size_of::<u64>()];
            let host_page = region.as_ptr().addr() / PAGE + first;
            page_map.read_exact_at(entries, (host_page * size_of::<u64>()) as u64)?;
            let entry =
                |index: usize| Entry(entries.as_chunks().0.get(index).map_or(0, |raw| u64::from_ne_bytes(*raw)));
            let is_wanted = |index: &usize| wanted(entry(*index), start + ((first + index) * PAGE) as u64);
            for run in runs(entries.len() / size_of::<u64>(), is_wanted) {
                let bytes = &mut bytes[..run.len() * PAGE];
                let offset = ((first + run.start) * PAGE) as u64;
                let slice = region.get_slice(MemoryRegionAddress(offset), bytes.len()).map_err(io::Error::other)?;
                slice.copy_to(&mut *bytes);
                show((start + offset) / BLOCK_BYTES, bytes)?;
            }
        }
    }
    Ok(())
}

/// The runs of numbers below `count` that are wanted, none longer than a run may be.
fn runs(count: usize, wanted: impl Fn(&usize) -> bool) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = (next..count).find(&wanted)?;
        let end = (start..count.min(start + RUN_PAGES)).find(|index| !wanted(index));
        next = end.unwrap_or(count.min(start + RUN_PAGES));
        Some(start..next)
    })
}

/// Puts those of the pages that are to be kept, neighbours together.
fn pick(
    block: u64,
    bytes: &[u8],
    mut keep: impl FnMut(u64, &[u8]) -> io::Result<bool>,
    mut put: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut kept: Range<usize> = 0..0;
    for (index, page) in bytes.chunks(PAGE).enumerate() {
        if keep(block + index as u64, page)? {
            kept.end = index + 1;
            continue;
        }
        if !kept.is_empty() {
            put(block + kept.start as u64, &bytes[kept.start * PAGE..kept.end * PAGE])?;
        }
        kept = index + 1..index + 1;
    }
    if !kept.is_empty() {
        put(block + kept.start as u64, &bytes[kept.start * PAGE..kept.end * PAGE])?;
    }
    Ok(())
}

/// Where a file has more than holes, up to `end`, in order.
fn extents(file: &File, end: u64) -> io::Result<Vec<Range<u64>>> {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < end {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // There is nothing but a hole.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let hole = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        extents.push(start..hole.min(end));
        at = hole;
    }
    Ok(extents)
}

/// Whether any part of the page at `address` lies in one of them.
fn lies_in(extents: &[Range<u64>], address: u64) -> bool {
    let next = extents.partition_point(|extent| extent.end <= address);
    extents.get(next).is_some_and(|extent| extent.start < address + BLOCK_BYTES)
}

#[cfg(test)]
mod tests;
