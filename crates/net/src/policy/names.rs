//! A host's name: lower case, without the dot at its end, no longer than the DNS allows.

use std::fmt;

/// The longest name, and the longest of its parts.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A host's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(String);

impl HostName {
    /// That name, if it is one. What looks like an address is none, however many dots it has.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() || text.len() > MAX_NAME || !text.split('.').all(is_label) {
            return None;
        }
        let last = text.rsplit('.').next()?;
        // The last part of a name is never a number: `10.1` and `0x7f.1` are addresses to some programs.
        let is_number = last.starts_with(|first: char| first.is_ascii_digit());
        (!is_number).then(|| Self(text.to_ascii_lowercase()))
    }

    /// Whether it lies below `other`, at any depth.
    #[must_use]
    pub fn is_below(&self, other: &Self) -> bool {
        self.0.strip_suffix(other.0.as_str()).is_some_and(|rest| rest.ends_with('.'))
    }

    /// The text of it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Underscores are in the names of services, and in those of some hosts.
fn is_label(label: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !label.is_empty() && label.len() <= MAX_LABEL && label.bytes().all(allowed) && !label.starts_with('-')
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
