//! What a child may use at most.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const MIB_SHIFT: u32 = 20;

/// What a child may use at most. Nothing given is nothing limited, and costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of the host's: what it has written to of its own memory, its VMM, and what the host caches for it.
    #[serde(rename = "memory_mib")]
    pub memory: Option<MemoryLimit>,
}

impl Limits {
    /// Whether there is no limit at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.memory.is_none()
    }
}

/// Why a limit is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Not an amount of memory one can be held to.
    #[error("a memory limit is a whole number of MiB, at least {}; `{asked}` was asked for", MemoryLimit::MIN.mib())]
    Memory {
        /// What was asked for.
        asked: String,
    },
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
        self.mib << MIB_SHIFT
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
        let limits = Limits { memory: Some(MemoryLimit::MIN) };
        let text = serde_json::to_string(&limits).unwrap();
        assert_eq!(text, r#"{"memory_mib":16}"#);
        assert_eq!(serde_json::from_str::<Limits>(&text).unwrap(), limits);
        assert!(serde_json::from_str::<Limits>("{}").unwrap().is_empty());
        serde_json::from_str::<Limits>(r#"{"memory_mib":1}"#).unwrap_err();
    }
}
