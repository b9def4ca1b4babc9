//! How commands are run in the guests of a recipe, where they say nothing else.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Deserialize;

use super::copy::GuestPath;
use super::word::checked_text;

/// Longer than anybody's.
const MAX_USER: usize = 64;
const MAX_NAME: usize = 256;
/// What the kernel takes as one string is more; so is nothing that belongs into a recipe.
const MAX_VALUE: usize = 32 << 10;

/// What holds for every command, the warm-up and the steps of the build, which root runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// Who runs commands: NAME, UID, NAME:GROUP or UID:GID; root when nothing is said.
    pub user: Option<UserName>,
    /// Where they are run; in the user's home when nothing is said.
    pub workdir: Option<GuestPath>,
    /// Variables of their environment.
    #[serde(default)]
    pub env: BTreeMap<VariableName, VariableValue>,
}

/// Not a user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a user; write NAME, UID, NAME:GROUP or UID:GID")]
pub struct UserNameError {
    text: String,
}

checked_text! {
    /// A user of the guest's, and optionally a group.
    UserName, UserNameError, r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$"
}

impl FromStr for UserName {
    type Err = UserNameError;

    fn from_str(text: &str) -> Result<Self, UserNameError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let is_word =
            |word: &str| word.bytes().next().is_some_and(plain) && word.bytes().all(|b| plain(b) || b".-".contains(&b));
        let words: Vec<_> = text.split(':').collect();
        if words.len() <= 2 && words.iter().all(|word| is_word(word)) && text.len() <= MAX_USER {
            Ok(Self(text.into()))
        } else {
            Err(UserNameError { text: text.into() })
        }
    }
}

/// Not the name of a variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the name of a variable; use letters, digits and `_`, not beginning with a digit")]
pub struct VariableNameError {
    text: String,
}

checked_text! {
    /// The name of a variable, as a shell takes it.
    VariableName, VariableNameError, r"^[A-Za-z_][A-Za-z0-9_]*$"
}

impl FromStr for VariableName {
    type Err = VariableNameError;

    fn from_str(text: &str) -> Result<Self, VariableNameError> {
        let fits = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let begins = text.bytes().next().is_some_and(|b| !b.is_ascii_digit());
        if fits && begins && text.len() <= MAX_NAME {
            Ok(Self(text.into()))
        } else {
            Err(VariableNameError { text: text.into() })
        }
    }
}

/// Not the value of a variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value of a variable has up to {MAX_VALUE} bytes, and no NUL")]
pub struct VariableValueError;

checked_text! {
    /// The value of a variable.
    VariableValue, VariableValueError, r"^[^\u0000]*$"
}

impl FromStr for VariableValue {
    type Err = VariableValueError;

    fn from_str(text: &str) -> Result<Self, VariableValueError> {
        if text.len() <= MAX_VALUE && !text.contains('\0') { Ok(Self(text.into())) } else { Err(VariableValueError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_arrives() {
        let text = "user = \"app:web\"\nworkdir = \"/srv/app\"\nenv = { A_1 = \"x=y\\nz\", B = \"\" }";
        let exec: Exec = toml::from_str(text).unwrap();
        assert_eq!(exec.user.unwrap().as_str(), "app:web");
        assert_eq!(exec.workdir.unwrap().as_str(), "/srv/app");
        let env: Vec<_> = exec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(env, [("A_1", "x=y\nz"), ("B", "")]);
        assert_eq!(toml::from_str::<Exec>("").unwrap(), Exec::default());
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (text, named) in [
            ("user = \"\"", "`` is not a user"),
            ("user = \"-x\"", "`-x` is not a user"),
            ("user = \"a:b:c\"", "not a user"),
            ("user = \"a b\"", "not a user"),
            ("workdir = \"srv\"", "`srv` is not a path"),
            ("env = { \"A=B\" = \"x\" }", "`A=B` is not the name"),
            ("env = { \"1A\" = \"x\" }", "`1A` is not the name"),
            ("env = { A = 1 }", "string"),
            ("env = { A = \"\\u0000\" }", "no NUL"),
            ("home = \"/x\"", "home"),
        ] {
            let error = toml::from_str::<Exec>(text).unwrap_err().to_string();
            assert!(error.contains(named), "{named:?} is not in: {error}");
        }
    }
}
