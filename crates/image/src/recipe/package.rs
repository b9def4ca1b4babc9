//! The words of a recipe that end up on command lines.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// Longer than any package in the archive.
const MAX_PACKAGE: usize = 128;
const MAX_SUITE: usize = 32;

/// Not the name of a Debian package.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a Debian package; use 2 to 128 of a-z, 0-9, `+`, `-` and `.`, beginning with a-z or 0-9")]
pub struct PackageNameError {
    text: String,
}

/// The name of a Debian package, as Debian Policy 5.6.1 has it: never an option, a path, a version or a task.
///
/// apt takes a trailing `+` or `-` as an order to install or remove when no package has that whole name. Names that end
/// in `+` exist (`g++`) and mean the same either way; none ends in `-`, so that is refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct PackageName(Box<str>);

impl PackageName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PackageName {
    type Err = PackageNameError;

    fn from_str(text: &str) -> Result<Self, PackageNameError> {
        let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let fits = text.bytes().all(|b| lower(b) || b"+-.".contains(&b));
        let ends = text.bytes().next().is_some_and(lower) && !text.ends_with('-');
        if fits && ends && (2..=MAX_PACKAGE).contains(&text.len()) {
            Ok(Self(text.into()))
        } else {
            Err(PackageNameError { text: text.into() })
        }
    }
}

impl TryFrom<String> for PackageName {
    type Error = PackageNameError;

    fn try_from(text: String) -> Result<Self, PackageNameError> {
        text.parse()
    }
}

impl fmt::Display for PackageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Not the name of a Debian release.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a Debian release; write its name, such as bookworm")]
pub struct SuiteError {
    text: String,
}

/// The name of a Debian release: lower-case letters only, as all of them are.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Suite(Box<str>);

impl Suite {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Suite {
    type Err = SuiteError;

    fn from_str(text: &str) -> Result<Self, SuiteError> {
        if (1..=MAX_SUITE).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase()) {
            Ok(Self(text.into()))
        } else {
            Err(SuiteError { text: text.into() })
        }
    }
}

impl TryFrom<String> for Suite {
    type Error = SuiteError;

    fn try_from(text: String) -> Result<Self, SuiteError> {
        text.parse()
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn real_names_pass() {
        for good in ["python3", "g++", "libstdc++6", "python3.11", "ca-certificates", "0ad", "2to3"] {
            assert_eq!(good.parse::<PackageName>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn what_apt_reads_otherwise_is_refused() {
        for bad in [
            "",
            "a",
            "-y",
            "--purge",
            "./x.deb",
            "/etc/x",
            "a/bookworm",
            "a=1.0",
            "a:i386",
            "a,b",
            "a b",
            "Python3",
            "a\n",
            "~nfoo",
            "?essential",
            "python3-",
            "tasksel^",
            "foo*",
            "a\0b",
            "ü-x",
            &"x".repeat(129),
        ] {
            assert!(bad.parse::<PackageName>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn suites_are_plain_words() {
        for good in ["bookworm", "trixie", "sid"] {
            good.parse::<Suite>().unwrap();
        }
        for bad in ["", "-x", "book worm", "../x", "bookworm/updates", "Bookworm", "b\n", &"x".repeat(33)] {
            assert!(bad.parse::<Suite>().is_err(), "{bad:?} was accepted");
        }
    }

    proptest! {
        #[test]
        fn whatever_passes_is_one_harmless_word(text in "\\PC{0,12}|[-+.a-z0-9]{0,12}") {
            if let Ok(name) = text.parse::<PackageName>() {
                let name = name.as_str();
                prop_assert!(!name.starts_with(['-', '.', '+']) && !name.ends_with('-'));
                let special = |c: char| c.is_whitespace() || "/\\,=:;'\"$`*?~^|&<>(){}[]".contains(c);
                prop_assert!(!name.contains(special), "{} has a special character", name);
                prop_assert_eq!(name, text);
            }
        }

        #[test]
        fn every_policy_name_passes(text in "[a-z0-9][-+.a-z0-9]{0,60}[+.a-z0-9]") {
            prop_assert!(text.parse::<PackageName>().is_ok());
        }
    }
}
