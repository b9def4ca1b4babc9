//! Whether the host has room for more VMs: asked before they are made, so that it is not those who run already that
//! suffer.
//!
//! ```text
//! available   what the host could give without swapping (MemAvailable)
//! promised    what children with a limit may still come to need, the new ones included
//! certain     what a VM without a limit needs in any case: a child that shares the rest, or one that boots
//! reserve     what stays for the host
//! ```
//!
//! A child without a limit shares all it can with its template, and nobody knows how much of its own it will want: it
//! counts with the least only. Who wants to be sure gives limits.

use std::fs;
use std::io;

use types::GuestMemorySize;

use crate::cgroup;

const MIB: u64 = 1 << 20;
/// What a child has of its own by the time it is ready, at least.
const CHILD: u64 = 2 * MIB;
/// What a kernel and its first programs touch, at least.
const BOOT: u64 = GuestMemorySize::MIN.bytes();
/// The part of the host's memory that stays its own, and the most of it that needs to.
const RESERVE_PART: u64 = 16;
const MAX_RESERVE: u64 = 512 * MIB;

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the host has {available_mib} MiB of memory to give, of which {promised_mib} MiB are promised to sandboxes with a limit \
     and {reserve_mib} MiB stay its own; what was asked for without a limit needs {certain_mib} MiB more: end some \
     sandboxes, or give them smaller limits"
)]
pub struct NoRoom {
    /// What it could give, in MiB.
    pub available_mib: u64,
    /// What is promised, to those that were asked for as well.
    pub promised_mib: u64,
    /// What those need in any case that were asked for without a limit.
    pub certain_mib: u64,
    /// What stays the host's.
    pub reserve_mib: u64,
}

/// Why nobody is let in.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// There is no room.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// How much memory there is cannot be told.
    #[error("how much memory the host has left cannot be told")]
    Unknown {
        /// What the system says.
        #[from]
        source: io::Error,
    },
}

/// Lets in so many children without a limit; those with one have their groups already.
pub(crate) fn admit(unlimited: usize) -> Result<(), AdmissionError> {
    admit_certain(u64::try_from(unlimited).unwrap_or(u64::MAX).saturating_mul(CHILD))
}

/// Lets in a VM that boots.
pub(crate) fn admit_boot() -> Result<(), AdmissionError> {
    admit_certain(BOOT)
}

fn admit_certain(certain: u64) -> Result<(), AdmissionError> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    Ok(judge(&meminfo, cgroup::promised()?, certain)?)
}

fn judge(meminfo: &str, promised: u64, certain: u64) -> Result<(), NoRoom> {
    let (available, total) = (bytes(meminfo, "MemAvailable:"), bytes(meminfo, "MemTotal:"));
    let reserve = (total / RESERVE_PART).min(MAX_RESERVE);
    if promised.saturating_add(certain).saturating_add(reserve) <= available {
        return Ok(());
    }
    Err(NoRoom {
        available_mib: available / MIB,
        promised_mib: promised / MIB,
        certain_mib: certain / MIB,
        reserve_mib: reserve / MIB,
    })
}

/// A line is `MemAvailable:   123456 kB`.
fn bytes(meminfo: &str, name: &str) -> u64 {
    let number = |line: &str| line.strip_prefix(name)?.split_ascii_whitespace().next()?.parse::<u64>().ok();
    meminfo.lines().find_map(number).unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "MemTotal:       16777216 kB\nMemFree:         1 kB\nMemAvailable:    4194304 kB\n";

    #[test]
    fn who_fits_is_let_in_and_who_does_not_is_told_the_figures() {
        judge(HOST, 0, 1000 * CHILD).unwrap();
        judge(HOST, (4096 - 512) * MIB, 0).unwrap();
        let no_room = judge(HOST, (4096 - 512) * MIB, CHILD).unwrap_err();
        let figures = NoRoom { available_mib: 4096, promised_mib: 3584, certain_mib: 2, reserve_mib: 512 };
        assert_eq!(no_room, figures);
        assert!(no_room.to_string().contains("4096 MiB"), "{no_room}");
        judge(HOST, u64::MAX, u64::MAX).unwrap_err();
    }

    #[test]
    fn this_host_has_room_for_one() {
        admit(1).unwrap();
        admit_boot().unwrap();
        let error = admit(usize::MAX).unwrap_err();
        assert!(matches!(error, AdmissionError::NoRoom(_)), "{error}");
    }

    #[test]
    fn a_small_host_keeps_a_small_part() {
        let small = "MemTotal: 1048576 kB\nMemAvailable: 131072 kB\n";
        judge(small, 64 * MIB, 0).unwrap();
        judge(small, 65 * MIB, 0).unwrap_err();
    }
}
