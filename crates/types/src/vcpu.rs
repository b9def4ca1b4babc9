//! How many virtual CPUs a guest has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A count outside of what a guest can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a guest has 1 to {max} vCPUs; `{asked}` were asked for")]
pub struct VcpuCountError {
    asked: String,
    max: u8,
}

/// 1 to 32 virtual CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct VcpuCount(u8);

impl VcpuCount {
    /// The most a guest can have: APIC ids have 8 bits, so there is room to spare.
    pub const MAX: u8 = 32;
    /// What a guest gets when nobody says.
    pub const DEFAULT: Self = Self(1);

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u32> for VcpuCount {
    type Error = VcpuCountError;

    fn try_from(count: u32) -> Result<Self, VcpuCountError> {
        match u8::try_from(count) {
            Ok(count @ 1..=Self::MAX) => Ok(Self(count)),
            _ => Err(VcpuCountError { asked: count.to_string(), max: Self::MAX }),
        }
    }
}

impl From<VcpuCount> for u32 {
    fn from(count: VcpuCount) -> Self {
        count.0.into()
    }
}

impl FromStr for VcpuCount {
    type Err = VcpuCountError;

    fn from_str(text: &str) -> Result<Self, VcpuCountError> {
        let refused = || VcpuCountError { asked: text.into(), max: Self::MAX };
        Self::try_from(text.trim().parse::<u32>().map_err(|_| refused())?)
    }
}

impl fmt::Display for VcpuCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_to_thirty_two() {
        assert_eq!("1".parse::<VcpuCount>().map(VcpuCount::get), Ok(1));
        assert_eq!("32".parse::<VcpuCount>().map(VcpuCount::get), Ok(32));
        for text in ["0", "33", "1000", "-1", "two", ""] {
            assert!(text.parse::<VcpuCount>().unwrap_err().to_string().contains(text));
        }
    }
}
