//! Names that end up in paths.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const MAX_NAME: usize = 64;

/// A name that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a name; use 1 to 64 letters, digits, `.`, `_` or `-`, beginning with a letter or digit")]
pub struct NameError {
    text: String,
}

/// The name of a recipe: one path component, never hidden, never a way out of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecipeName(Box<str>);

impl RecipeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RecipeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let first_fits = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let rest_fits = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if first_fits && rest_fits && text.len() <= MAX_NAME {
            Ok(Self(text.into()))
        } else {
            Err(NameError { text: text.into() })
        }
    }
}

impl TryFrom<String> for RecipeName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<RecipeName> for String {
    fn from(name: RecipeName) -> Self {
        name.0.into()
    }
}

impl fmt::Display for RecipeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_pass_and_paths_do_not() {
        for good in ["debian", "python-numpy", "python3.12", "a_b"] {
            assert_eq!(good.parse::<RecipeName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "../a", "a b", "a\0", &"x".repeat(65)] {
            assert!(bad.parse::<RecipeName>().is_err(), "{bad:?} was accepted");
        }
    }
}
