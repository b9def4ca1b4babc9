//! Files of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a file is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileInfo {
    /// Where it is; what is no UTF-8 in it is shown as U+FFFD.
    pub path: String,
    /// The last part of the path.
    pub name: String,
    /// Of which kind.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permissions as octal digits, such as `0644`.
    pub mode: String,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When its contents changed, in seconds since 1970.
    pub mtime_unix: f64,
    /// Where a link points to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A device, a socket, a pipe.
    Other,
}

/// A directory to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MakeDir {
    /// Where; absolute.
    pub path: String,
    /// Make those above it that are missing, and be content when it is there already.
    #[serde(default = "yes")]
    pub parents: bool,
    /// Permissions as octal digits; `0755` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Who makes it, and whose it is; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A file or directory that shall be called otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoveFile {
    /// Which; absolute.
    pub from: String,
    /// What it is called then; absolute.
    pub to: String,
    /// Replace what has that name.
    #[serde(default)]
    pub overwrite: bool,
    /// Who moves it; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

const fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_the_default() {
        let asked: MakeDir = serde_json::from_str(r#"{"path":"/a"}"#).unwrap();
        assert!(asked.parents && asked.mode.is_none());
        let asked: MoveFile = serde_json::from_str(r#"{"from":"/a","to":"/b"}"#).unwrap();
        assert!(!asked.overwrite);
    }
}
