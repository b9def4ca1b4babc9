//! What the system knows of a process: the CPU time it used and the memory that is its own.

use std::fs;

use anyhow::{Context, Result};

/// Puts this process and all it will start before others, if it may; says whether. What is left of other people's work
/// then hits a stall of milliseconds less.
pub(crate) fn go_first() -> bool {
    rustix::process::nice(-20).is_ok()
}

/// CPU time of all its threads so far, in microseconds.
pub(crate) fn cpu_us(pid: u32) -> Result<f64> {
    let mut sum = 0.0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let nanoseconds: f64 = text.split(' ').next().unwrap_or_default().parse().context("schedstat")?;
        sum += nanoseconds / 1e3;
    }
    Ok(sum)
}

/// Memory of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// Pages that only this process has and that differ from their file.
    pub(crate) private_dirty_kib: f64,
    /// Its page tables.
    pub(crate) page_tables_kib: f64,
    /// Its share of everything, shared pages divided by who shares them.
    pub(crate) proportional_kib: f64,
}

impl Memory {
    /// As it is now.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        Ok(Self {
            private_dirty_kib: field(&maps, "Private_Dirty:")?,
            page_tables_kib: field(&status, "VmPTE:")?,
            proportional_kib: field(&maps, "Pss:")?,
        })
    }

    /// What goes when the process does.
    pub(crate) fn private_kib(&self) -> f64 {
        self.private_dirty_kib + self.page_tables_kib
    }
}

fn field(text: &str, name: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    let number = line.trim().trim_end_matches("kB").trim();
    number.parse().with_context(|| format!("{name} {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_written_is_private() {
        let before = Memory::of(std::process::id()).unwrap();
        let mut written = vec![1_u8; 8 << 20];
        written[0] = 2;
        let after = Memory::of(std::process::id()).unwrap();
        assert!(after.private_kib() - before.private_kib() > 7.0 * 1024.0, "{before:?} {after:?} {}", written[1]);
    }

    #[test]
    fn work_uses_cpu_time() {
        let before = cpu_us(std::process::id()).unwrap();
        let mut sum = 0_u64;
        for number in 0..10_000_000 {
            sum = std::hint::black_box(sum ^ number);
        }
        assert!(cpu_us(std::process::id()).unwrap() > before, "{sum}");
    }
}
