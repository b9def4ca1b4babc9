//! How a registry asks who we are, and what it is told.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

/// No token is longer.
pub(super) const MAX_TOKEN: u64 = 64 << 10;

/// What a registry asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A name and a password with every request.
    Basic,
    /// A token.
    Bearer(Bearer),
}

/// Who gives tokens away.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Bearer {
    pub(super) realm: String,
    pub(super) service: String,
}

impl Challenge {
    /// The one of several `WWW-Authenticate` headers to answer to: a token, which needs no name and password.
    pub(super) fn choose<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Self> {
        let known: Vec<_> = headers.filter_map(Self::parse).collect();
        known.into_iter().max_by_key(|challenge| matches!(challenge, Self::Bearer(_)))
    }

    /// Reads a `WWW-Authenticate` header.
    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut bearer = Bearer::default();
        let mut rest = rest;
        while let Some((name, value)) = rest.split_once('=') {
            let (value, after) = match value.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => value.split_once(',').unwrap_or((value, "")),
            };
            match name.trim_matches([' ', ',']) {
                "realm" => bearer.realm = value.into(),
                "service" => bearer.service = value.into(),
                _ => {}
            }
            rest = after;
        }
        let is_address = bearer.realm.starts_with("https://") || bearer.realm.starts_with("http://");
        is_address.then_some(Self::Bearer(bearer))
    }
}

/// A name and a password as a header has them.
pub(super) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
}

/// The header that a token server's answer makes.
pub(super) fn token(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        token: Option<String>,
        access_token: Option<String>,
    }
    let answer: Answer = serde_json::from_slice(text).ok()?;
    let token = answer.token.or(answer.access_token)?;
    let is_sound = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    is_sound.then(|| format!("Bearer {token}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_as_servers_write_them() {
        let bearer = |realm: &str, service: &str| {
            Some(Challenge::Bearer(Bearer { realm: realm.into(), service: service.into() }))
        };
        for (text, expected) in [
            ("Basic realm=\"x\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (r#"Bearer realm="https://a/t",service="s",scope="repository:x:pull,push""#, bearer("https://a/t", "s")),
            (r#"bearer service=s, realm="https://a/t""#, bearer("https://a/t", "s")),
            (r#"Bearer realm="file:///etc/passwd""#, None),
            (r#"Bearer realm="unended"#, None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(text), expected, "{text}");
        }
        let several = ["Negotiate", r#"Bearer realm="https://a/t""#, "Basic realm=\"x\""];
        assert_eq!(Challenge::choose(several.into_iter()), bearer("https://a/t", ""));
        assert_eq!(Challenge::choose(["Negotiate", "Basic"].into_iter()), Some(Challenge::Basic));
        assert_eq!(Challenge::choose(["Negotiate"].into_iter()), None);
        assert_eq!(basic("me", "pw"), "Basic bWU6cHc=");
        assert_eq!(token(br#"{"token": "abc"}"#).as_deref(), Some("Bearer abc"));
        assert_eq!(token(br#"{"access_token": "abc"}"#).as_deref(), Some("Bearer abc"));
        assert_eq!((token(b"{}"), token(br#"{"token": "a\nb"}"#)), (None, None));
    }
}
