//! What a process's memory costs.

use std::fs;
use std::io;

use serde::Serialize;

/// Memory of one process, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryUse {
    /// Its alone: what would be free if it ended.
    pub private_kib: u64,
    /// Used by others too.
    pub shared_kib: u64,
    /// The page tables, which the two above do not count.
    pub tables_kib: u64,
}

/// Of this process, now.
pub(crate) fn memory_of(pid: i32) -> io::Result<MemoryUse> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(MemoryUse {
        private_kib: sum(&rollup, &["Private_Clean", "Private_Dirty", "Private_Hugetlb"]),
        shared_kib: sum(&rollup, &["Shared_Clean", "Shared_Dirty", "Shared_Hugetlb"]),
        tables_kib: sum(&status, &["VmPTE"]),
    })
}

/// Adds up the lines `Name:   123 kB` of these names.
fn sum(text: &str, names: &[&str]) -> u64 {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let wanted = lines.filter(|(name, _)| names.contains(name));
    wanted.filter_map(|(_, value)| value.trim().trim_end_matches(" kB").parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_added_by_name() {
        let text = "00400000-7ffd ---p 00000000 00:00 0 [rollup]\nRss:   900 kB\nPrivate_Clean:  4 kB\n\
                    Private_Dirty:  38 kB\nShared_Clean: junk kB\n";
        assert_eq!(sum(text, &["Private_Clean", "Private_Dirty"]), 42);
        assert_eq!(sum(text, &["Shared_Clean"]), 0);
    }

    #[test]
    fn we_have_memory_ourselves() {
        let own = memory_of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.private_kib > 0 && own.tables_kib > 0, "{own:?}");
    }
}
