//! Fields that may be absent, null, or there: absent changes nothing, null takes away.

use serde::{Deserialize, Deserializer};

/// A field that is there; with `default`, one that is not is `None`.
pub(crate) fn present<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Some)
}

/// A field that may be null and must be there.
pub(crate) fn said<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer)
}
