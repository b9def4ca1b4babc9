//! What is meant for a shell.

use std::str::FromStr;

use super::word::checked_text;

/// Longer ones belong into a file of the image.
pub(super) const MAX_LINE: usize = 4096;

/// Not a line for a shell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a command is one line of 1 to {MAX_LINE} bytes that can be printed")]
pub struct ShellLineError;

checked_text! {
    /// One line for `sh -c`, run in the guest and nowhere else.
    ShellLine, ShellLineError, r"^[^\u0000-\u001f]*[^\u0000-\u0020][^\u0000-\u001f]*$"
}

impl FromStr for ShellLine {
    type Err = ShellLineError;

    fn from_str(text: &str) -> Result<Self, ShellLineError> {
        let fits = (1..=MAX_LINE).contains(&text.len()) && !text.trim().is_empty();
        if fits && !text.contains(char::is_control) { Ok(Self(text.into())) } else { Err(ShellLineError) }
    }
}
