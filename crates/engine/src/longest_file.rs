//! How long the longest file is that a VMM has reason to write.

use types::GuestMemorySize;

/// Where memory beyond 3 GiB is, in its file.
const HOLE_BYTES: u64 = 1 << 30;
/// Logs, consoles and the state.
const LEAST: u64 = 64 << 20;

/// Of a VM with this memory and disks of these lengths: a layer of the largest, with its table, which is far smaller than
/// an eighth.
pub(crate) fn longest_file(memory: GuestMemorySize, disks: impl IntoIterator<Item = u64>) -> u64 {
    let memory = memory.bytes().saturating_add(HOLE_BYTES);
    let largest = disks.into_iter().fold(memory, u64::max);
    largest.saturating_add(largest / 8).saturating_add(LEAST)
}
