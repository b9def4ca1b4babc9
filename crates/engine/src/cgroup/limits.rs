//! What a child may use at most.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const MIB_SHIFT: u32 = 20;

/// What a child may use at most. Nothing given is nothing limited, and costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Memory of the host's: what it has written to of its own memory, its VMM, and what the host caches for it. Who needs
    /// more is ended.
    #[serde(rename = "memory_mib", skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryLimit>,
    /// The same, but who needs more is slowed down until it needs less.
    #[serde(rename = "memory_high_mib", skip_serializing_if = "Option::is_none")]
    pub memory_high: Option<MemoryLimit>,
    /// How much of it may be swapped out; none where there is a limit of memory and this is not said.
    #[serde(rename = "swap_mib", skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapLimit>,
    /// Thousandths of a CPU.
    #[serde(rename = "cpu_millis", skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuLimit>,
    /// Its share where CPUs are short; 100 is everybody's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<CpuWeight>,
    /// What is read from the host's disks in a second.
    #[serde(rename = "read_mib_per_sec", skip_serializing_if = "Option::is_none")]
    pub read: Option<IoLimit>,
    /// What is written to them in a second.
    #[serde(rename = "write_mib_per_sec", skip_serializing_if = "Option::is_none")]
    pub write: Option<IoLimit>,
    /// What the guest writes to its own disks, of which the host keeps every block once. A guest that writes more gets
    /// errors from its disk.
    #[serde(rename = "disk_mib", skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskLimit>,
    /// Processes and threads of its VMM; without, each group has a bound that no VMM comes near.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<PidsLimit>,
}

impl Limits {
    /// Whether there is no limit at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These, and what they do not say from others.
    #[must_use]
    pub fn over(self, others: Self) -> Self {
        Self {
            memory: self.memory.or(others.memory),
            memory_high: self.memory_high.or(others.memory_high),
            swap: self.swap.or(others.swap),
            cpu: self.cpu.or(others.cpu),
            cpu_weight: self.cpu_weight.or(others.cpu_weight),
            read: self.read.or(others.read),
            write: self.write.or(others.write),
            disk: self.disk.or(others.disk),
            pids: self.pids.or(others.pids),
        }
    }

    /// Whether the host's control groups hold any of them; the disk's is held by the VMM.
    pub(crate) fn need_group(&self) -> bool {
        !Self { disk: None, ..*self }.is_empty()
    }

    pub(crate) const fn are_of_memory(&self) -> bool {
        self.memory.is_some() || self.memory_high.is_some() || self.swap.is_some()
    }

    pub(crate) const fn are_of_cpu(&self) -> bool {
        self.cpu.is_some() || self.cpu_weight.is_some()
    }

    pub(crate) const fn are_of_io(&self) -> bool {
        self.read.is_some() || self.write.is_some()
    }
}

/// MiB of swap.
pub type SwapLimit = Within<0, { u64::MAX >> MIB_SHIFT }>;
/// Thousandths of a CPU: fewer than ten are less than the system can give.
pub type CpuLimit = Within<10, 1_000_000>;
/// A share.
pub type CpuWeight = Within<1, 10_000>;
/// MiB in a second.
pub type IoLimit = Within<1, { u64::MAX >> MIB_SHIFT }>;
/// MiB on a disk.
pub type DiskLimit = Within<1, { u64::MAX >> MIB_SHIFT }>;

/// Processes and threads: a VMM has one for each vCPU and a few more.
pub type PidsLimit = Within<64, 32_768>;

/// Why a limit is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Not an amount of memory one can be held to.
    #[error("a memory limit is a whole number of MiB, at least {}; `{asked}` was asked for", MemoryLimit::MIN.mib())]
    Memory {
        /// What was asked for.
        asked: String,
    },
    /// Not a number that this limit can be.
    #[error("this limit is a whole number from {least} to {most}; `{asked}` was asked for")]
    Range {
        /// What was asked for.
        asked: String,
        /// The least it can be.
        least: u64,
        /// The most it can be.
        most: u64,
    },
}

/// A whole number from `LEAST` to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Within<const LEAST: u64, const MOST: u64>(u64);

impl<const LEAST: u64, const MOST: u64> Within<LEAST, MOST> {
    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    fn refuse(asked: &impl ToString) -> LimitError {
        LimitError::Range { asked: asked.to_string(), least: LEAST, most: MOST }
    }
}

impl<const LEAST: u64, const MOST: u64> TryFrom<u64> for Within<LEAST, MOST> {
    type Error = LimitError;

    fn try_from(number: u64) -> Result<Self, LimitError> {
        if (LEAST..=MOST).contains(&number) { Ok(Self(number)) } else { Err(Self::refuse(&number)) }
    }
}

impl<const LEAST: u64, const MOST: u64> From<Within<LEAST, MOST>> for u64 {
    fn from(within: Within<LEAST, MOST>) -> Self {
        within.0
    }
}

impl<const LEAST: u64, const MOST: u64> FromStr for Within<LEAST, MOST> {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        text.parse::<u64>().map_err(|_| Self::refuse(&text))?.try_into()
    }
}

/// As many bytes as MiB; never more than 64 bits can count.
pub(crate) const fn mib_to_bytes(mib: u64) -> u64 {
    mib << MIB_SHIFT
}

/// The most memory of the host's a child may use, in whole MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct MemoryLimit {
    mib: u64,
}

impl MemoryLimit {
    /// A guest that does nothing gets by with less; one that is worth having does not.
    pub const MIN: Self = Self { mib: 16 };

    /// In MiB.
    #[must_use]
    pub const fn mib(self) -> u64 {
        self.mib
    }

    /// In bytes; never more than 64 bits can count.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        mib_to_bytes(self.mib)
    }
}

impl TryFrom<u64> for MemoryLimit {
    type Error = LimitError;

    /// Takes MiB.
    fn try_from(mib: u64) -> Result<Self, LimitError> {
        if (Self::MIN.mib..=u64::MAX >> MIB_SHIFT).contains(&mib) {
            Ok(Self { mib })
        } else {
            Err(LimitError::Memory { asked: mib.to_string() })
        }
    }
}

impl From<MemoryLimit> for u64 {
    fn from(limit: MemoryLimit) -> Self {
        limit.mib
    }
}

impl FromStr for MemoryLimit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        text.parse::<u64>().map_err(|_| LimitError::Memory { asked: text.into() })?.try_into()
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.mib)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_whole_mib_and_bounded_on_both_sides() {
        assert_eq!("16".parse(), Ok(MemoryLimit::MIN));
        assert_eq!("256".parse::<MemoryLimit>().unwrap().bytes(), 256 << 20);
        let most = u64::MAX >> 20;
        assert_eq!(MemoryLimit::try_from(most).unwrap().bytes(), most << 20);
        for bad in ["", "0", "15", "-1", "1.5", "16M", "17592186044416", "99999999999999999999"] {
            let error = bad.parse::<MemoryLimit>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")) && error.contains("at least 16"), "{error}");
        }
    }

    #[test]
    fn a_record_holds_limits_that_are_checked_again() {
        let limits = Limits { memory: Some(MemoryLimit::MIN), ..Limits::default() };
        let text = serde_json::to_string(&limits).unwrap();
        assert_eq!(text, r#"{"memory_mib":16}"#);
        assert_eq!(serde_json::from_str::<Limits>(&text).unwrap(), limits);
        assert!(serde_json::from_str::<Limits>("{}").unwrap().is_empty());
        serde_json::from_str::<Limits>(r#"{"memory_mib":1}"#).unwrap_err();
    }

    #[test]
    fn every_limit_is_written_down_and_read_again() {
        let text = r#"{"memory_mib":64,"memory_high_mib":48,"swap_mib":0,"cpu_millis":1500,"cpu_weight":50,"read_mib_per_sec":9,"write_mib_per_sec":8,"disk_mib":7,"pids":64}"#;
        let limits: Limits = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&limits).unwrap(), text);
        assert!(limits.need_group() && limits.are_of_memory() && limits.are_of_cpu() && limits.are_of_io());
        let disk_only = Limits { disk: limits.disk, ..Limits::default() };
        assert!(!disk_only.is_empty() && !disk_only.need_group());
        for bad in
            [r#"{"cpu_millis":9}"#, r#"{"cpu_weight":0}"#, r#"{"disk_mib":0}"#, r#"{"swap_mib":-1}"#, r#"{"pids":63}"#]
        {
            serde_json::from_str::<Limits>(bad).unwrap_err();
        }
        let error = "ten".parse::<CpuWeight>().unwrap_err().to_string();
        assert!(error.contains("from 1 to 10000") && error.contains("`ten`"), "{error}");
    }

    #[test]
    fn what_one_child_says_goes_before_what_all_are_told() {
        let all: Limits = serde_json::from_str(r#"{"memory_mib":64,"cpu_millis":100}"#).unwrap();
        let own: Limits = serde_json::from_str(r#"{"memory_mib":128,"disk_mib":1}"#).unwrap();
        let both: Limits = serde_json::from_str(r#"{"memory_mib":128,"cpu_millis":100,"disk_mib":1}"#).unwrap();
        assert_eq!(own.over(all), both);
    }
}
