//! The name of a layer: the digest of all it contains.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const LEN: usize = 32;

/// Text that is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a digest; it has 64 hexadecimal digits in lower case")]
pub struct DigestError {
    text: String,
}

/// A BLAKE3 digest; as text, 64 hexadecimal digits in lower case and nothing else, so that it is one path component
/// and equal when its text is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; LEN]);

impl Digest {
    /// From its bytes.
    #[must_use]
    pub const fn new(bytes: [u8; LEN]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; LEN] {
        &self.0
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(hash.into())
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let mut bytes = [0; LEN];
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let fits = pairs.len() == LEN && rest.is_empty();
        let read = bytes.iter_mut().zip(pairs).try_for_each(|(byte, [high, low])| {
            *byte = digit(*high)? << 4 | digit(*low)?;
            Some(())
        });
        match read {
            Some(()) if fits => Ok(Self(bytes)),
            _ => Err(DigestError { text: text.chars().take(4 * LEN).collect() }),
        }
    }
}

const fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_its_own_text_is_read() {
        let good = "0123456789abcdef".repeat(4);
        assert_eq!(good.parse::<Digest>().unwrap().to_string(), good);
        let (upper, short, long) = (good.to_uppercase(), &good[1..], format!("{good}0"));
        for bad in ["", "../../etc", &upper, short, &good[2..], &long, &format!("{long}0"), &"ä".repeat(32)] {
            assert!(bad.parse::<Digest>().is_err(), "{bad:?} was accepted");
        }
        serde_json::from_str::<Digest>("\"00\"").unwrap_err();
    }

    proptest! {
        #[test]
        fn text_and_json_come_back(bytes in any::<[u8; LEN]>()) {
            let digest = Digest::new(bytes);
            prop_assert_eq!(digest.to_string().parse(), Ok(digest));
            let json = serde_json::to_string(&digest).unwrap();
            prop_assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        }
    }
}
