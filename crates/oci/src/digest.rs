//! `sha256:...`: what things are called by their contents.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::Deserialize;
use sha2::{Digest as _, Sha256, Sha512};

/// Not a digest that we can check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a digest: sha256 or sha512, a colon, and lower-case hex digits")]
pub struct DigestError {
    /// What is not one.
    pub text: String,
}

/// The digest of some bytes. It has no `/` and no dots, so it can be part of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Digest {
    algorithm: Algorithm,
    hex: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }
}

impl Digest {
    /// Of bytes in memory, as SHA-256.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::Sha256(Sha256::new());
        hasher.update(bytes);
        hasher.finish()
    }

    /// Of all that can be read, as SHA-256.
    pub(crate) fn of_stream(source: &mut dyn Read) -> io::Result<Self> {
        let mut hasher = Hasher::Sha256(Sha256::new());
        hasher.read(source)?;
        Ok(hasher.finish())
    }

    /// To compute one of the same kind.
    pub(crate) fn hasher(&self) -> Hasher {
        match self.algorithm {
            Algorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            Algorithm::Sha512 => Hasher::Sha512(Sha512::new()),
        }
    }

    /// `sha256` or `sha512`.
    #[must_use]
    pub const fn algorithm(&self) -> &'static str {
        self.algorithm.name()
    }

    /// The digits.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.hex
    }
}

/// Collects bytes.
#[derive(Clone, Debug)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn read(&mut self, source: &mut dyn Read) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 17];
        loop {
            match source.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(len) => self.update(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn finish(self) -> Digest {
        let (algorithm, bytes) = match self {
            Self::Sha256(hasher) => (Algorithm::Sha256, hasher.finalize().to_vec()),
            Self::Sha512(hasher) => (Algorithm::Sha512, hasher.finalize().to_vec()),
        };
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let hex: String = digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect();
        Digest { algorithm, hex: hex.into() }
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let bad = || DigestError { text: text.chars().take(200).collect() };
        let (name, hex) = text.split_once(':').ok_or_else(bad)?;
        let (algorithm, len) = match name {
            "sha256" => (Algorithm::Sha256, 64),
            "sha512" => (Algorithm::Sha512, 128),
            _ => return Err(bad()),
        };
        let is_hex = hex.len() == len && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_hex { Ok(Self { algorithm, hex: hex.into() }) } else { Err(bad()) }
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_again() {
        let digest = Digest::of(b"abc");
        assert_eq!(digest.to_string(), "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(digest.to_string().parse(), Ok(digest.clone()));
        let long: Digest = format!("sha512:{}", "0f".repeat(64)).parse().unwrap();
        assert_eq!(long.hasher().finish().algorithm(), "sha512");
        for bad in ["", "sha256:", "md5:00", "sha256:../../../etc/passwd", &digest.to_string().to_uppercase()] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
