//! Guest RAM as this process maps it: private, aligned to huge pages.
//!
//! Where host and guest addresses agree modulo 2 MiB, the kernel can back the guest with huge pages, in its own tables
//! and in KVM's: a fault for 512 small pages at once. A process runs one VM, so RAM is mapped once and never unmapped.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

use vm_memory::mmap::{MmapRegionBuilder, MmapRegionError};

/// x86's huge page.
const HUGE_PAGE: usize = 2 << 20;
const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;
const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_NORESERVE;

/// Why RAM could not be mapped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RamError {
    /// The system says no.
    #[error(transparent)]
    Map(#[from] io::Error),
    /// The region does not take the mapping.
    #[error(transparent)]
    Region(#[from] MmapRegionError),
}

/// Maps `len` bytes that are all zero and cost nothing until written.
pub(crate) fn map(len: usize) -> Result<vm_memory::MmapRegion, RamError> {
    map_over(len, FLAGS | libc::MAP_ANONYMOUS, -1, 0)
}

/// Maps `len` bytes of a file from `offset` on, privately: what is written here stays here. The file must be long enough
/// for as long as the mapping lives; touching a page beyond its end kills the process.
pub(crate) fn map_image(len: usize, image: &File, offset: u64) -> Result<vm_memory::MmapRegion, RamError> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    map_over(len, FLAGS, image.as_raw_fd(), offset)
}

fn map_over(len: usize, flags: i32, fd: RawFd, offset: i64) -> Result<vm_memory::MmapRegion, RamError> {
    let reserved = len.checked_add(HUGE_PAGE).ok_or(io::Error::from(io::ErrorKind::OutOfMemory))?;
    // SAFETY: the kernel chooses the place, so nothing that exists is touched.
    let start = unsafe { libc::mmap(ptr::null_mut(), reserved, libc::PROT_NONE, FLAGS | libc::MAP_ANONYMOUS, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error().into());
    }
    let aligned = start.map_addr(|address| address.next_multiple_of(HUGE_PAGE));
    // SAFETY: `aligned..aligned + len` lies in the reservation above, of which nobody knows but us.
    let mapped = unsafe { libc::mmap(aligned, len, PROTECTION, flags | libc::MAP_FIXED, fd, offset) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error().into());
    }
    let builder = MmapRegionBuilder::new(len).with_mmap_prot(PROTECTION).with_mmap_flags(flags);
    // SAFETY: the mapping is `len` bytes long, readable and writable, and is never unmapped.
    let builder = unsafe { builder.with_raw_mmap_pointer(mapped.cast()) };
    Ok(builder.build()?)
}

#[cfg(test)]
mod tests {
    use vm_memory::VolatileMemory;

    use super::*;

    #[test]
    fn ram_is_aligned_zero_and_writable_to_its_end() {
        let region = map(5 << 20).unwrap();
        assert_eq!(region.as_ptr().addr() % HUGE_PAGE, 0);
        let last = region.get_ref::<u8>((5 << 20) - 1).unwrap();
        assert_eq!(last.load(), 0);
        last.store(7);
        assert_eq!(last.load(), 7);
    }

    #[test]
    fn more_than_an_address_space_is_refused() {
        assert!(matches!(map(usize::MAX), Err(RamError::Map(_))));
        assert!(matches!(map(1 << 62), Err(RamError::Map(_))));
    }
}
