//! Guest RAM: always private to the process, so that a VM forks as its process does. Anonymous for a VM that boots, a
//! private mapping of a memory image for one that was frozen.

use std::fs::File;
use std::io;
use std::sync::Arc;

use proto::control::RefusalCode;
use types::GuestMemorySize;
use virtio::GuestMem;
use vm_memory::{GuestAddress, GuestRegionMmap, MmapRegion};

use crate::layout::{HOLE, HOLE_END};
use crate::sys;

/// Why there is no memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    /// More than the host has in all.
    #[error("the guest asks for {asked}, this host has {host_mib} MiB in all; ask for less with --memory")]
    TooMuch {
        /// What was asked for.
        asked: GuestMemorySize,
        /// RAM and swap of the host.
        host_mib: u64,
    },
    /// The host says no.
    #[error("{asked} of guest memory cannot be mapped: {why}")]
    Map {
        /// What was asked for.
        asked: GuestMemorySize,
        /// What the system says.
        why: String,
    },
}

impl MemoryError {
    /// Which case the engine is told.
    pub(crate) const fn code(&self) -> RefusalCode {
        RefusalCode::Memory
    }
}

/// Where RAM lies: below the hole, and what is left beyond it.
pub(crate) fn ranges(size: GuestMemorySize) -> Vec<(u64, u64)> {
    let bytes = size.bytes();
    if bytes <= HOLE { vec![(0, bytes)] } else { vec![(0, HOLE), (HOLE_END, bytes - HOLE)] }
}

/// A guest's memory.
#[derive(Clone, Debug)]
pub(crate) struct GuestRam {
    /// As this process has it.
    pub(crate) mem: GuestMem,
    /// What is behind pages that were never written: an image, or zeroes.
    pub(crate) image: Option<Arc<File>>,
}

/// Maps the memory image of a guest of this size. The file must be as long as [`file_len`] says.
pub(crate) fn map_image(size: GuestMemorySize, image: File) -> Result<GuestRam, MemoryError> {
    let mem = map_with(size, |start, len| sys::ram::map_image(len, &image, start))?;
    Ok(GuestRam { mem, image: Some(Arc::new(image)) })
}

/// How long the file of a guest's memory is at least.
pub(crate) fn file_len(size: GuestMemorySize) -> u64 {
    ranges(size).last().map_or(0, |(start, len)| start + len)
}

/// Maps a guest's memory. Nothing is reserved: a page costs the host memory when the guest first writes it.
pub(crate) fn map(size: GuestMemorySize) -> Result<GuestRam, MemoryError> {
    let info = rustix::system::sysinfo();
    let host_bytes = (info.totalram.saturating_add(info.totalswap)).saturating_mul(u64::from(info.mem_unit));
    if size.bytes() > host_bytes {
        return Err(MemoryError::TooMuch { asked: size, host_mib: host_bytes >> 20 });
    }
    Ok(GuestRam { mem: map_with(size, |_, len| sys::ram::map(len))?, image: None })
}

fn map_with(
    size: GuestMemorySize,
    map: impl Fn(u64, usize) -> Result<MmapRegion, sys::ram::RamError>,
) -> Result<GuestMem, MemoryError> {
    let failed = |error: &dyn std::error::Error| MemoryError::Map { asked: size, why: error.to_string() };
    let mut regions = Vec::new();
    for (start, len) in ranges(size) {
        let mapping = usize::try_from(len).map_err(|error| failed(&error))?;
        let mapping = map(start, mapping).map_err(|error| failed(&error))?;
        let region = GuestRegionMmap::new(mapping, GuestAddress(start));
        regions.push(region.ok_or_else(|| failed(&io::Error::from(io::ErrorKind::OutOfMemory)))?);
    }
    GuestMem::from_regions(regions).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestMemoryBackend;

    use super::*;

    #[test]
    fn memory_beyond_three_gib_lies_above_the_hole() {
        let size = "4G".parse().unwrap();
        assert_eq!(ranges(size), [(0, 3 << 30), (4 << 30, 1 << 30)]);
        assert_eq!(ranges("3G".parse().unwrap()), [(0, 3 << 30)]);
    }

    #[test]
    fn a_small_guest_is_mapped_and_an_impossible_one_refused() {
        assert_eq!(map(GuestMemorySize::MIN).unwrap().mem.last_addr(), GuestAddress((128 << 20) - 1));
        assert!(matches!(map(GuestMemorySize::MAX), Err(MemoryError::TooMuch { .. })));
    }
}
