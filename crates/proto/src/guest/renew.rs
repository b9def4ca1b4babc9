//! What makes a forked guest somebody of its own.
//!
//! Every field is a type that cannot hold what it must not: a request that was read is one that can be carried out, and
//! its texts are safe in a path, a file of lines and a shell.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The most variables, or words of metadata, one request carries.
const MAX_ENTRIES: usize = 256;
/// The most bytes of them, names and values together.
const MAX_ENTRIES_BYTES: usize = 64 << 10;
pub(super) const MAX_NAME: usize = 128;
const MAX_WORD: usize = 64;
/// A host name the kernel takes.
const MAX_HOST_NAME: usize = 63;

/// Why a field was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// A text that is not what it should be.
    #[error("`{text}` is not {wanted}")]
    Text {
        /// What was given.
        text: String,
        /// What is taken.
        wanted: &'static str,
    },
    /// Too many variables or too much in them.
    #[error("more than {MAX_ENTRIES} entries, or more than {MAX_ENTRIES_BYTES} bytes of them")]
    TooMuch,
    /// The wrong amount of randomness, or not hexadecimal.
    #[error("entropy is 32 to 256 bytes in hexadecimal")]
    Entropy,
}

/// Everything a guest must be told after a fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewRequest {
    /// Who it is, to those who made it.
    pub sandbox_id: Word,
    /// Who it is, on a network.
    pub hostname: HostName,
    /// Who it is, to its own programs.
    pub machine_id: MachineId,
    /// Different after every fork, so that a program can notice.
    pub generation: Word,
    /// From now on in the environment of whatever is started, and of the warm interpreter; what an earlier renewal put
    /// there and this one does not name is gone.
    #[serde(default, skip_serializing_if = "Variables::is_empty")]
    pub env: Variables,
    /// For whoever wants to read it.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata,
    /// Nanoseconds since 1970, as late as possible before it is sent.
    pub wall_clock_unix_ns: u64,
    /// Randomness nobody else has.
    pub entropy: Entropy,
}

/// What the guest says when it is somebody of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    /// How long that took.
    pub took_us: u64,
    /// The guest's monotonic clock, which went on.
    pub monotonic_ns: u64,
}

macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident: $fits:ident, $wanted:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// As text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = FieldError;

            fn from_str(text: &str) -> Result<Self, FieldError> {
                if $fits(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(FieldError::Text { text: text.chars().take(MAX_NAME).collect(), wanted: $wanted })
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = FieldError;

            fn try_from(text: String) -> Result<Self, FieldError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

pub(super) use checked_text;

checked_text! {
    /// An id or a generation: 1 to 64 letters, digits, `.`, `_` or `-`, beginning with a letter or digit.
    Word: is_word, "1 to 64 letters, digits, `.`, `_` or `-`, beginning with a letter or digit"
}
checked_text! {
    /// A host name, with or without a domain.
    HostName: is_host_name, "a host name: 1 to 63 letters, digits, `.` or `-`, with a letter or digit at both ends"
}
checked_text! {
    /// What `/etc/machine-id` holds.
    MachineId: is_machine_id, "a machine id: 32 digits of 0-9 and a-f, not all zero"
}

fn is_word(text: &str) -> bool {
    let first_fits = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    first_fits && text.len() <= MAX_WORD && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        let ends = [label.bytes().next(), label.bytes().last()];
        ends.iter().all(|end| end.is_some_and(|b| b.is_ascii_alphanumeric()))
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    text.len() <= MAX_HOST_NAME && text.split('.').all(label)
}

fn is_machine_id(text: &str) -> bool {
    text.len() == 32
        && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        && text.bytes().any(|digit| digit != b'0')
}

/// Environment variables: names a shell can assign to, values without NUL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Variables(BTreeMap<String, String>);

/// Words about a sandbox: printable names, any values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Metadata(BTreeMap<String, String>);

macro_rules! checked_map {
    ($name:ident) => {
        impl $name {
            /// The entries.
            #[must_use]
            pub const fn as_map(&self) -> &BTreeMap<String, String> {
                &self.0
            }

            /// Whether there is nothing in it.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl From<$name> for BTreeMap<String, String> {
            fn from(map: $name) -> Self {
                map.0
            }
        }
    };
}

checked_map!(Variables);
checked_map!(Metadata);

impl TryFrom<BTreeMap<String, String>> for Variables {
    type Error = FieldError;

    fn try_from(map: BTreeMap<String, String>) -> Result<Self, FieldError> {
        check_size(&map)?;
        for (name, value) in &map {
            let starts = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
            let fits = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            check_name(starts && fits, name, "the name of an environment variable: letters, digits and `_`")?;
            check_name(!value.contains('\0'), name, "set to anything a process can be told: it contains a NUL")?;
        }
        Ok(Self(map))
    }
}

impl TryFrom<BTreeMap<String, String>> for Metadata {
    type Error = FieldError;

    fn try_from(map: BTreeMap<String, String>) -> Result<Self, FieldError> {
        check_size(&map)?;
        for name in map.keys() {
            let fits = !name.is_empty() && !name.contains(char::is_control);
            check_name(fits, name, "a name for metadata: it is empty or cannot be printed")?;
        }
        Ok(Self(map))
    }
}

fn check_size(map: &BTreeMap<String, String>) -> Result<(), FieldError> {
    let bytes: usize = map.iter().map(|(name, value)| name.len() + value.len()).sum();
    if map.len() > MAX_ENTRIES || bytes > MAX_ENTRIES_BYTES { Err(FieldError::TooMuch) } else { Ok(()) }
}

fn check_name(fits: bool, name: &str, wanted: &'static str) -> Result<(), FieldError> {
    if fits && name.len() <= MAX_NAME {
        Ok(())
    } else {
        Err(FieldError::Text { text: name.chars().take(MAX_NAME).collect(), wanted })
    }
}

/// 32 to 256 random bytes, in hexadecimal on the wire. Never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Entropy(Vec<u8>);

impl Entropy {
    /// The fewest bytes: as many as the kernel's generator has for a key.
    pub const MIN: usize = 32;
    /// The most bytes.
    pub const MAX: usize = 256;

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for Entropy {
    type Error = FieldError;

    fn try_from(bytes: Vec<u8>) -> Result<Self, FieldError> {
        if (Self::MIN..=Self::MAX).contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(FieldError::Entropy) }
    }
}

impl TryFrom<String> for Entropy {
    type Error = FieldError;

    fn try_from(text: String) -> Result<Self, FieldError> {
        let digit = |b: u8| char::from(b).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let byte = |pair: &[u8]| match *pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        Self::try_from(bytes.ok_or(FieldError::Entropy)?)
    }
}

impl From<Entropy> for String {
    fn from(entropy: Entropy) -> Self {
        entropy
            .0
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .filter_map(|n| char::from_digit(n.into(), 16))
            .collect()
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entropy({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn names_that_pass_are_safe_everywhere() {
        for good in ["sb-66f0a1-1b2c", "a", "1", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"] {
            assert_eq!(good.parse::<Word>().unwrap().as_str(), good);
            assert_eq!(good.parse::<HostName>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".", "..", "a/b", "a b", "a\n", "a\0", "ü", &"x".repeat(65)] {
            assert!(bad.parse::<Word>().is_err() && bad.parse::<HostName>().is_err(), "{bad:?} was accepted");
        }
        assert!("a_b".parse::<HostName>().is_err() && "a..b".parse::<HostName>().is_err());
        assert!("a-.b".parse::<HostName>().is_err() && "a-".parse::<HostName>().is_err());
    }

    #[test]
    fn a_machine_id_is_what_systemd_takes() {
        "0123456789abcdef0123456789abcdef".parse::<MachineId>().unwrap();
        let long = "a".repeat(33);
        for bad in ["", "0123456789ABCDEF0123456789abcdef", "00000000000000000000000000000000", "xyz", &long] {
            assert!(bad.parse::<MachineId>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn variables_and_metadata_are_bounded_and_named() {
        Variables::try_from(map(&[("A", "b\nc'd"), ("_x1", "")])).unwrap();
        for bad in [[("", "x")], [("1A", "x")], [("A=B", "x")], [("A B", "x")], [("A\n", "x")], [("A", "\0")]] {
            assert!(Variables::try_from(map(&bad)).is_err(), "{bad:?} was accepted");
        }
        Metadata::try_from(map(&[("run id", "\0\n"), ("ü", "")])).unwrap();
        for bad in [[("", "x")], [("a\n", "x")]] {
            assert!(Metadata::try_from(map(&bad)).is_err(), "{bad:?} was accepted");
        }
        let many: BTreeMap<_, _> = (0..257).map(|n| (format!("A{n}"), String::new())).collect();
        assert_eq!(Variables::try_from(many.clone()), Err(FieldError::TooMuch));
        assert_eq!(Metadata::try_from(many), Err(FieldError::TooMuch));
        assert_eq!(Variables::try_from(map(&[("A", &"x".repeat(64 << 10))])), Err(FieldError::TooMuch));
    }

    #[test]
    fn entropy_has_a_length_and_is_never_shown() {
        for length in [31, 257] {
            assert_eq!(Entropy::try_from(vec![7; length]), Err(FieldError::Entropy));
            assert_eq!(Entropy::try_from("07".repeat(length)), Err(FieldError::Entropy));
        }
        for bad in ["0".repeat(65), "0g".repeat(32), "ü".repeat(32), "+1".repeat(32)] {
            assert_eq!(Entropy::try_from(bad), Err(FieldError::Entropy));
        }
        assert_eq!(format!("{:?}", Entropy::try_from(vec![0xab; 32]).unwrap()), "Entropy(32 bytes)");
    }

    proptest! {
        #[test]
        fn entropy_survives_the_wire(bytes in prop::collection::vec(any::<u8>(), 32..=256)) {
            let entropy = Entropy::try_from(bytes).unwrap();
            let text = serde_json::to_string(&entropy).unwrap();
            prop_assert_eq!(serde_json::from_str::<Entropy>(&text).unwrap(), entropy);
        }
    }
}
