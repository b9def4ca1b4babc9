//! Files of the guest.
//!
//! ```text
//! client                                agent
//!   Read{path, offset, length}   ->
//!                                <-     File, stdout bytes, Done       (or Error, also in the middle)
//!   Write{path, mode, ...}       ->
//!                                <-     Done                           (or Error: nothing was changed)
//!   stdin bytes, an empty frame  ->
//!                                <-     StdinCredit as it is written; File when it is in place, or Error
//!   List{path, depth}            ->
//!                                <-     Files, Files, ..., Done        (or Error, also in the middle)
//! ```
//!
//! All others are answered with one message. A file is written beside its place and then moved there, so nobody ever sees
//! half of it; whoever goes away before its end leaves nothing. Written bytes have the window that stdin has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::renew::{FieldError, MAX_NAME, checked_text};

/// The longest path, as the kernel takes it.
const MAX_PATH: usize = 4095;
/// The deepest directories a list goes down to; more means this.
pub const MAX_LIST_DEPTH: u32 = 64;

checked_text! {
    /// A path in the guest: absolute, short enough for a kernel, without NUL.
    GuestPath: is_path, "an absolute path of at most 4095 bytes without NUL"
}

fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.len() <= MAX_PATH && !text.contains('\0')
}

/// Something with files. Who does it is in each of them: `user` is as in [`super::ExecRequest`], root when absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileRequest {
    /// Its contents.
    Read(ReadFile),
    /// New contents.
    Write(WriteFile),
    /// What is in a directory.
    List(ListFiles),
    /// What it is. Answered with [`super::Reply::File`].
    Stat(StatFile),
    /// A new directory. Answered with [`super::Reply::File`].
    MakeDir(MakeDir),
    /// Another place or name. Answered with [`super::Reply::File`].
    Move(MoveFile),
    /// Its end. Answered with [`super::Reply::Done`].
    Remove(RemoveFile),
}

impl FileRequest {
    /// Who does it.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Read(ReadFile { user, .. })
            | Self::Write(WriteFile { user, .. })
            | Self::List(ListFiles { user, .. })
            | Self::Stat(StatFile { user, .. })
            | Self::MakeDir(MakeDir { user, .. })
            | Self::Move(MoveFile { user, .. })
            | Self::Remove(RemoveFile { user, .. }) => user.as_deref(),
        }
    }
}

/// Reads a regular file, following links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFile {
    /// Which.
    pub path: GuestPath,
    /// From where on; behind its end there is nothing.
    #[serde(default)]
    pub offset: u64,
    /// How much at most; all of it when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// Who reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Writes a file that is there only when it is whole. A link of that name is replaced, not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteFile {
    /// Which.
    pub path: GuestPath,
    /// Its permissions; those of the file it replaces when absent, else 0644.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Makes the directories that are missing.
    #[serde(default)]
    pub parents: bool,
    /// Who writes, and whose it then is; without a user it stays whose it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Lists what is below a directory, in no order. Links are not followed. What cannot be entered is listed and not entered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFiles {
    /// Which directory.
    pub path: GuestPath,
    /// How deep: 1 is what is in the directory itself. At most [`MAX_LIST_DEPTH`].
    pub depth: u32,
    /// Who looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Tells what a file is; a link is not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatFile {
    /// Which.
    pub path: GuestPath,
    /// Who looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Makes a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeDir {
    /// Which.
    pub path: GuestPath,
    /// Its permissions; 0755 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Makes those above it that are missing, and is content when it is there already.
    #[serde(default)]
    pub parents: bool,
    /// Who makes it, and whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Moves a file or a directory; between file systems only a regular file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveFile {
    /// Which.
    pub from: GuestPath,
    /// What it is called then.
    pub to: GuestPath,
    /// Replaces what has that name.
    #[serde(default)]
    pub overwrite: bool,
    /// Who moves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Removes a file or a directory; a link and not what it points to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveFile {
    /// Which.
    pub path: GuestPath,
    /// With everything that is in it.
    #[serde(default)]
    pub recursive: bool,
    /// Who removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Its path; what is not UTF-8 in it is shown as U+FFFD.
    pub path: String,
    /// Of which kind.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permissions, as `chmod` takes them.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When its contents changed, in milliseconds since 1970.
    pub mtime_unix_ms: i64,
    /// Where a link points to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_is_absolute_and_one_a_kernel_takes() {
        let long = format!("/{}", "x".repeat(MAX_PATH - 1));
        for good in ["/", "/a/../b c", "/\u{fc}\n", &long] {
            assert_eq!(good.parse::<GuestPath>().unwrap().as_str(), good);
        }
        for bad in ["", "a", "./a", "/a\0", &format!("{long}x")] {
            assert!(bad.parse::<GuestPath>().is_err(), "{bad:?} was accepted");
        }
        serde_json::from_str::<StatFile>(r#"{"path":"etc"}"#).unwrap_err();
    }

    proptest! {
        #[test]
        fn what_is_known_of_a_file_survives_the_wire(
            (path, target) in (any::<String>(), any::<Option<String>>()),
            (size, mode, mtime_unix_ms) in (any::<u64>(), any::<u32>(), any::<i64>()),
        ) {
            let info = FileInfo { path, kind: FileKind::Other, size, mode, uid: 1, gid: 2, mtime_unix_ms, target };
            let text = serde_json::to_string(&info).unwrap();
            prop_assert_eq!(serde_json::from_str::<FileInfo>(&text).unwrap(), info);
        }
    }
}
