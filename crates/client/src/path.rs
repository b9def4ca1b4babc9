//! Paths of requests, with whatever names in them.

use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// `/v1/` and these parts, then a query of these pairs; names are written so that they stay names.
#[must_use]
pub fn path(parts: &[&str], query: &[(&str, &str)]) -> String {
    let mut path = "/v1".to_owned();
    for part in parts {
        // A name of dots would mean another path.
        let part = if part.chars().all(|one| one == '.') { part.replace('.', "%2E") } else { encode(part) };
        path.push('/');
        path.push_str(&part);
    }
    for (n, (name, value)) in query.iter().enumerate() {
        write!(path, "{}{}={}", if n == 0 { '?' } else { '&' }, encode(name), encode(value))
            .expect("a text takes text");
    }
    path
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, KEPT).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_names() {
        assert_eq!(path(&["sandboxes", "sb-1"], &[]), "/v1/sandboxes/sb-1");
        assert_eq!(path(&["snapshots", "../x?y"], &[]), "/v1/snapshots/..%2Fx%3Fy");
        assert_eq!(path(&["snapshots", ".."], &[]), "/v1/snapshots/%2E%2E");
        assert_eq!(
            path(&["files"], &[("path", "/a b&c"), ("parents", "true")]),
            "/v1/files?path=%2Fa%20b%26c&parents=true"
        );
    }
}
