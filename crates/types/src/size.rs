//! Sizes as people write them (`512M`, `4GiB`) and the one size a guest's memory may have.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const MIB: u64 = 1 << 20;

/// Why a size was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with an optional unit.
    #[error("`{text}` is not a size; write a number with an optional unit, such as 512M or 4GiB")]
    Syntax {
        /// What was written.
        text: String,
    },
    /// Larger than 64 bits can count.
    #[error("`{text}` is larger than any size")]
    Overflow {
        /// What was written.
        text: String,
    },
    /// Not a memory size a guest can boot with.
    #[error("a guest needs between {min} and {max} of memory, in whole MiB; {asked_bytes} bytes were asked for")]
    Memory {
        /// Bytes asked for.
        asked_bytes: u64,
        /// Smallest accepted size.
        min: GuestMemorySize,
        /// Largest accepted size.
        max: GuestMemorySize,
    },
}

/// Reads a number of bytes: plain, or with `K`, `M`, `G`, `T` (powers of 1024; `MiB` and `MB` mean the same here).
///
/// # Errors
/// When the text is not a number with a known unit, or the product does not fit in 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (digits, unit) = trimmed.split_at(split);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(SizeError::Syntax { text: text.into() }),
    };
    if digits.is_empty() {
        return Err(SizeError::Syntax { text: text.into() });
    }
    let overflow = || SizeError::Overflow { text: text.into() };
    let number: u64 = digits.parse().map_err(|_| overflow())?;
    number.checked_mul(1 << shift).ok_or_else(overflow)
}

/// How much memory a guest has: whole MiB, from 128 MiB to 1 TiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct GuestMemorySize(u64);

impl GuestMemorySize {
    /// The least a stock distribution kernel boots with.
    pub const MIN: Self = Self(128 * MIB);
    /// More than any host of ours has; bounds what a request can ask for.
    pub const MAX: Self = Self(1 << 40);
    /// What a guest gets when nobody says.
    pub const DEFAULT: Self = Self(512 * MIB);

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The size in MiB.
    #[must_use]
    pub const fn mib(self) -> u64 {
        self.0 / MIB
    }
}

impl TryFrom<u64> for GuestMemorySize {
    type Error = SizeError;

    fn try_from(bytes: u64) -> Result<Self, SizeError> {
        if bytes.is_multiple_of(MIB) && (Self::MIN.0..=Self::MAX.0).contains(&bytes) {
            Ok(Self(bytes))
        } else {
            Err(SizeError::Memory { asked_bytes: bytes, min: Self::MIN, max: Self::MAX })
        }
    }
}

impl From<GuestMemorySize> for u64 {
    fn from(size: GuestMemorySize) -> Self {
        size.0
    }
}

impl FromStr for GuestMemorySize {
    type Err = SizeError;

    /// A bare number means MiB, as it does everywhere memory is given to a VM.
    fn from_str(text: &str) -> Result<Self, SizeError> {
        let bytes = match text.trim().parse::<u64>() {
            Ok(mib) => mib.checked_mul(MIB).ok_or_else(|| SizeError::Overflow { text: text.into() })?,
            Err(_) => parse_bytes(text)?,
        };
        Self::try_from(bytes)
    }
}

impl fmt::Display for GuestMemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1 << 30) { write!(f, "{} GiB", self.0 >> 30) } else { write!(f, "{} MiB", self.mib()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(parse_bytes("3"), Ok(3));
        assert_eq!(parse_bytes("2K"), Ok(2048));
        assert_eq!(parse_bytes("512MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes("4 GB"), Ok(4 << 30));
    }

    #[test]
    fn nonsense_is_refused_with_the_text() {
        for text in ["", "M", "12Q", "-1", "1.5G", "999999999999T"] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn guest_memory_is_bounded() {
        assert_eq!("512".parse(), Ok(GuestMemorySize::DEFAULT));
        assert_eq!("4G".parse::<GuestMemorySize>().map(GuestMemorySize::mib), Ok(4096));
        assert!(matches!("1".parse::<GuestMemorySize>(), Err(SizeError::Memory { asked_bytes: 1_048_576, .. })));
        assert!(matches!("2T".parse::<GuestMemorySize>(), Err(SizeError::Memory { .. })));
        serde_json::from_str::<GuestMemorySize>("1048576").unwrap_err();
    }

    proptest! {
        #[test]
        fn any_text_is_answered_without_panic(text in ".{0,40}") {
            let parsed: Result<GuestMemorySize, _> = text.parse();
            if let Ok(size) = parsed {
                prop_assert!(size >= GuestMemorySize::MIN && size <= GuestMemorySize::MAX);
            }
        }
    }
}
