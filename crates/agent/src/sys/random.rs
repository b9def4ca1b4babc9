//! The kernel's random number generator.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use proto::guest::Entropy;

use super::check;

/// `_IOW('R', 0x03, int [2])`: mixes bytes in and counts them as random.
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
/// `_IO('R', 0x07)`: makes the generator take a new key from what was mixed in, at once.
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

/// `struct rand_pool_info` with room for the most we take.
#[repr(C)]
struct PoolInfo {
    entropy_bits: c_int,
    buffer_bytes: c_int,
    buffer: [u8; Entropy::MAX],
}

/// Gives the kernel a secret of its own and has every later random byte depend on it.
pub(crate) fn reseed(entropy: &Entropy) -> io::Result<()> {
    let bytes = entropy.as_bytes();
    let length = c_int::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut pool = PoolInfo { entropy_bits: 8 * length, buffer_bytes: length, buffer: [0; Entropy::MAX] };
    pool.buffer[..bytes.len()].copy_from_slice(bytes);
    let device = File::open("/dev/urandom")?;
    add_entropy(&device, &pool)?;
    reseed_crng(&device)
}

fn add_entropy(device: impl AsFd, pool: &PoolInfo) -> io::Result<()> {
    // SAFETY: the kernel reads the two numbers and as many bytes behind them as the second says, all within `pool`.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), RNDADDENTROPY, std::ptr::from_ref(pool)) })
}

fn reseed_crng(device: impl AsFd) -> io::Result<()> {
    // SAFETY: takes no argument and touches no memory of ours.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), RNDRESEEDCRNG) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_both_requests() {
        for length in [Entropy::MIN, Entropy::MAX] {
            match reseed(&vec![0x5a; length].try_into().unwrap()) {
                // More entropy harms nobody; without the right to add it, the kernel still knows what was asked.
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"),
            }
        }
    }
}
