//! Maps and numbers as columns hold them.

use std::collections::BTreeMap;

use api::SandboxLimits;
use rusqlite::Row;
use rusqlite::types::Type;

/// Text as a column holds it.
pub(super) type Map = BTreeMap<String, String>;

/// A map as JSON.
pub(super) fn to_json(map: &Map) -> String {
    serde_json::to_string(map).expect("text can be written as JSON")
}

/// A column that holds a map.
pub(super) fn map(row: &Row<'_>, column: &str) -> rusqlite::Result<Map> {
    from_text(row, column, |text| serde_json::from_str(text).ok())
}

/// A column that holds limits.
pub(super) fn limits(row: &Row<'_>) -> rusqlite::Result<SandboxLimits> {
    from_text(row, "limits", |text| serde_json::from_str(text).ok())
}

/// Limits as JSON.
pub(super) fn limits_to_json(limits: &SandboxLimits) -> String {
    serde_json::to_string(limits).expect("numbers can be written as JSON")
}

/// A column that holds one of our words.
pub(super) fn from_text<T>(row: &Row<'_>, column: &str, read: impl FnOnce(&str) -> Option<T>) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    read(&text).ok_or_else(|| {
        let error = format!("`{text}` is not what a column `{column}` holds").into();
        rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error)
    })
}
