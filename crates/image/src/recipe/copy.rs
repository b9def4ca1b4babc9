//! Files that a recipe brings along: from beside it, to a place in the image.

use std::path::{Component, Path};
use std::str::FromStr;

use serde::Deserialize;

use super::word::{checked_text, described};

/// What the kernel takes as a path.
const MAX_PATH: usize = 4095;

/// One file or directory to copy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CopyStep {
    /// A file or directory beside recipe.toml, with all that is in it. Symbolic links are copied, never followed.
    pub from: BesidePath,
    /// What it is called in the image. Directories that are missing are made, and those that are there keep their modes.
    pub to: GuestPath,
    /// The mode of all files that are copied, in octal; otherwise what can be executed is 0755, and the rest 0644.
    pub mode: Option<Mode>,
    /// Whose it is, as UID or UID:GID, directories included; root's when nothing is said, but a directory that is there
    /// stays whose it is.
    pub owner: Option<Owner>,
}

/// Not a path beside the recipe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a path beside the recipe; write one that stays there, such as files/server.py")]
pub struct BesidePathError {
    text: String,
}

checked_text! {
    /// A path that stays below where the recipe is: relative, without `.` and `..`.
    BesidePath, BesidePathError, r"^[^/\u0000-\u001f]+(/[^/\u0000-\u001f]+)*$"
}

impl FromStr for BesidePath {
    type Err = BesidePathError;

    fn from_str(text: &str) -> Result<Self, BesidePathError> {
        // Compared with what it is made of, so that nothing is said in two ways.
        let names: Vec<_> = text.split('/').collect();
        let stays = Path::new(text).components().all(|part| matches!(part, Component::Normal(_)));
        let plain = names.iter().all(|name| !name.is_empty() && *name != ".");
        if stays && plain && text.len() <= MAX_PATH && !text.contains(char::is_control) {
            Ok(Self(text.into()))
        } else {
            Err(BesidePathError { text: text.into() })
        }
    }
}

/// Not a path in a guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a path in the guest; write all of it, without `..` and without a `/` at its end, as in /opt/app"
)]
pub struct GuestPathError {
    text: String,
}

checked_text! {
    /// An absolute path in a guest, without `.`, `..` and empty names; never the root itself.
    GuestPath, GuestPathError, r"^(/[^/\u0000-\u001f]+)+$"
}

impl FromStr for GuestPath {
    type Err = GuestPathError;

    fn from_str(text: &str) -> Result<Self, GuestPathError> {
        let error = || GuestPathError { text: text.into() };
        let below: BesidePath = text.strip_prefix('/').ok_or_else(error)?.parse().map_err(|_| error())?;
        if below.as_str().len() < MAX_PATH { Ok(Self(text.into())) } else { Err(error()) }
    }
}

/// Not a mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a mode; write it in octal and in quotes, such as \"0755\"")]
pub struct ModeError {
    text: String,
}

/// Permissions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Mode(u16);

impl Mode {
    /// As `chmod` takes it.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}

described! { Mode, { "type": "string", "pattern": "^[0-7]{3,4}$" } }

impl TryFrom<String> for Mode {
    type Error = ModeError;

    fn try_from(text: String) -> Result<Self, ModeError> {
        let octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        match u16::from_str_radix(&text, 8) {
            Ok(bits) if octal => Ok(Self(bits)),
            _ => Err(ModeError { text }),
        }
    }
}

/// Not an owner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an owner; write numbers, UID or UID:GID, such as \"1000:1000\" (a step of build.run can name users)"
)]
pub struct OwnerError {
    text: String,
}

/// Whose a file is. In numbers: who a name is, only the image knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

described! { Owner, { "type": "string", "pattern": "^[0-9]{1,10}(:[0-9]{1,10})?$" } }

impl TryFrom<String> for Owner {
    type Error = OwnerError;

    fn try_from(text: String) -> Result<Self, OwnerError> {
        let number = |part: &str| part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse::<u32>().ok()).flatten();
        let (uid, gid) = text.split_once(':').unwrap_or((&text, &text));
        match (number(uid), number(gid)) {
            // The last one means nobody to the kernel, and no change to its calls.
            (Some(uid), Some(gid)) if uid != u32::MAX && gid != u32::MAX => Ok(Self { uid, gid }),
            _ => Err(OwnerError { text }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn copy(text: &str) -> Result<CopyStep, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn every_field_arrives() {
        let found = copy("from = \"app/x.py\"\nto = \"/opt/x.py\"\nmode = \"4755\"\nowner = \"7:8\"").unwrap();
        assert_eq!((found.from.as_str(), found.to.as_str()), ("app/x.py", "/opt/x.py"));
        assert_eq!((found.mode.unwrap().bits(), found.owner.unwrap()), (0o4755, Owner { uid: 7, gid: 8 }));
        let plain = copy("from = \"x\"\nto = \"/x\"\nowner = \"7\"").unwrap();
        assert_eq!((plain.mode, plain.owner.unwrap()), (None, Owner { uid: 7, gid: 7 }));
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        for bad in
            ["", ".", "..", "../x", "a/../b", "/etc", "a//b", "a/", "./a", "a/.", "a\0", "a\nb", &"x".repeat(4096)]
        {
            assert!(bad.parse::<BesidePath>().is_err(), "{bad:?}");
            assert!(format!("/{bad}").parse::<GuestPath>().is_err(), "/{bad:?}");
        }
        for bad in ["x", "", "/", "//x", "/x/"] {
            assert!(bad.parse::<GuestPath>().is_err(), "{bad:?}");
        }
        for (text, named) in [
            ("from = \"x\"", "to"),
            ("from = \"x\"\nto = \"y\"", "`y` is not a path in the guest"),
            ("from = \"x\"\nto = \"/y\"\nmode = \"9\"", "`9` is not a mode"),
            ("from = \"x\"\nto = \"/y\"\nmode = 755", "string"),
            ("from = \"x\"\nto = \"/y\"\nmode = \"07777777\"", "not a mode"),
            ("from = \"x\"\nto = \"/y\"\nowner = \"app\"", "`app` is not an owner"),
            ("from = \"x\"\nto = \"/y\"\nowner = \"4294967295\"", "not an owner"),
            ("from = \"x\"\nto = \"/y\"\nowner = \"1:2:3\"", "not an owner"),
            ("from = \"x\"\nto = \"/y\"\nown = \"1\"", "own"),
        ] {
            let error = copy(text).unwrap_err().to_string();
            assert!(error.contains(named), "{named:?} is not in: {error}");
        }
    }

    proptest! {
        #[test]
        fn whatever_passes_stays_below(text in "[./a-z]{1,12}") {
            if let Ok(path) = text.parse::<BesidePath>() {
                let joined = Path::new("/recipe").join(path.as_str());
                prop_assert!(joined.starts_with("/recipe/") || joined.starts_with("/recipe"));
                prop_assert!(joined.components().all(|part| !matches!(part, Component::ParentDir | Component::CurDir)));
                prop_assert!(joined != Path::new("/recipe"));
            }
        }
    }
}
