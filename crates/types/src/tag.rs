//! The name of a snapshot.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const MAX_TAG: usize = 64;

/// A tag that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a tag; use 1 to 64 letters, digits, `.`, `_` or `-`, not beginning with `.` or `-`")]
pub struct TagError {
    text: String,
}

/// What a snapshot is called: one path component, never hidden, and no option of a command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tag(Box<str>);

impl Tag {
    /// The tag as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Tag {
    type Err = TagError;

    fn from_str(text: &str) -> Result<Self, TagError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let first_fits = text.bytes().next().is_some_and(plain);
        let rest_fits = text.bytes().all(|b| plain(b) || b".-".contains(&b));
        if first_fits && rest_fits && text.len() <= MAX_TAG {
            Ok(Self(text.into()))
        } else {
            Err(TagError { text: text.chars().take(2 * MAX_TAG).collect() })
        }
    }
}

impl TryFrom<String> for Tag {
    type Error = TagError;

    fn try_from(text: String) -> Result<Self, TagError> {
        text.parse()
    }
}

impl From<Tag> for String {
    fn from(tag: Tag) -> Self {
        tag.0.into()
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_tags_pass_and_paths_do_not() {
        for good in ["a", "7", "pyagent", "python-3.12_x", "PyAgent", "_x", &"x".repeat(64)] {
            assert_eq!(good.parse::<Tag>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".x", "-x", "a/b", "../a", "a b", "a\0", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<Tag>().is_err(), "{bad:?} was accepted");
        }
        serde_json::from_str::<Tag>(r#""../up""#).unwrap_err();
    }

    proptest! {
        #[test]
        fn a_tag_is_always_one_visible_path_component(text in ".{0,70}") {
            if let Ok(tag) = text.parse::<Tag>() {
                let path = std::path::Path::new(tag.as_str());
                prop_assert_eq!(path.components().count(), 1);
                prop_assert!(!tag.as_str().starts_with('.') && tag.as_str() == text);
            }
        }
    }
}
