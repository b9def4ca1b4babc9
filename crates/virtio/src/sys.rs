//! System calls that move data between guest memory and a descriptor, or give memory back; the only unsafe code of this
//! crate.
//!
//! Guest memory may change at any time, so it is never turned into a Rust slice: the kernel gets the addresses.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_uint, c_void, iovec, off_t, ssize_t};

use crate::Buffers;

/// `UIO_MAXIOV`: the most pieces the kernel takes in one call.
const MAX_PIECES: usize = 1024;
/// x86's page.
const PAGE: usize = 4096;

/// Reads from a stream or packet descriptor; says how much.
pub(crate) fn read(fd: BorrowedFd<'_>, to: &Buffers<'_>) -> io::Result<usize> {
    let pieces = pieces(to);
    // SAFETY: `pieces` describes memory that `to` borrows for the length of the call, and the kernel stays inside it.
    retry(|| unsafe { libc::readv(fd.as_raw_fd(), pieces.as_ptr(), count(&pieces)) })
}

/// Writes to a stream or packet descriptor; says how much.
pub(crate) fn write(fd: BorrowedFd<'_>, from: &Buffers<'_>) -> io::Result<usize> {
    let pieces = pieces(from);
    // SAFETY: as in `read`; the kernel only reads the memory.
    retry(|| unsafe { libc::writev(fd.as_raw_fd(), pieces.as_ptr(), count(&pieces)) })
}

/// Writes to a socket without waiting and without a signal when its other end is gone; says how much.
pub(crate) fn send(fd: BorrowedFd<'_>, from: &Buffers<'_>) -> io::Result<usize> {
    let mut pieces = pieces(from);
    // SAFETY: `msghdr` is plain data for which all zeroes are valid: no address, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `message` names only `pieces`, which describes memory that `from` borrows for the length of the call.
    retry(|| unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) })
}

/// Reads from a place in a file; says how much.
pub(crate) fn read_at(fd: BorrowedFd<'_>, to: &Buffers<'_>, offset: u64) -> io::Result<usize> {
    let (pieces, offset) = (pieces(to), file_offset(offset)?);
    // SAFETY: as in `read`.
    retry(|| unsafe { libc::preadv(fd.as_raw_fd(), pieces.as_ptr(), count(&pieces), offset) })
}

/// Writes to a place in a file; says how much.
pub(crate) fn write_at(fd: BorrowedFd<'_>, from: &Buffers<'_>, offset: u64) -> io::Result<usize> {
    let (pieces, offset) = (pieces(from), file_offset(offset)?);
    // SAFETY: as in `write`.
    retry(|| unsafe { libc::pwritev(fd.as_raw_fd(), pieces.as_ptr(), count(&pieces), offset) })
}

/// Has the system forget the whole pages of a piece of private memory: they become what lies behind the mapping.
pub(crate) fn give_back(slice: &vm_memory::VolatileSlice<'_>) -> io::Result<()> {
    let start = slice.ptr_guard_mut().as_ptr();
    let (first, end) = (start.addr().next_multiple_of(PAGE), (start.addr() + slice.len()) / PAGE * PAGE);
    let Some(len) = end.checked_sub(first).filter(|len| *len > 0) else { return Ok(()) };
    let first = start.map_addr(|_| first);
    // SAFETY: the pages lie inside of guest memory, which `slice` borrows, and of which nobody believes that it stays as it
    // is; none of it is unmapped.
    retry(|| unsafe { libc::madvise(first.cast(), len, libc::MADV_DONTNEED) } as ssize_t)?;
    Ok(())
}

/// Tells a tap which unfinished packets (`TUN_F_*`) its reader can take.
pub(crate) fn set_tap_offload(fd: BorrowedFd<'_>, flags: c_uint) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument by value; no memory is involved.
    retry(|| unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags)) } as ssize_t)?;
    Ok(())
}

fn pieces(buffers: &Buffers<'_>) -> Vec<iovec> {
    let piece = |slice: &vm_memory::VolatileSlice<'_>| iovec {
        iov_base: slice.ptr_guard_mut().as_ptr().cast::<c_void>(),
        iov_len: slice.len(),
    };
    buffers.slices().take(MAX_PIECES).map(piece).collect()
}

fn count(pieces: &[iovec]) -> c_int {
    c_int::try_from(pieces.len()).expect("at most MAX_PIECES")
}

fn file_offset(offset: u64) -> io::Result<off_t> {
    off_t::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn retry(mut call: impl FnMut() -> ssize_t) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}
