//! Names of images in registries: `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;

const HUB: &str = "docker.io";
/// Where that host's registry is.
const HUB_API: &str = "registry-1.docker.io";
const MAX_LEN: usize = 512;

/// Not a name of an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` names no image; such a name is python:3.12-slim or localhost:5000/mine@sha256:..., and what is on \
         this computer is named by oci:, oci-archive:, docker-archive:, dir: or tar: and a path"
)]
pub struct ReferenceError {
    /// What is not one.
    pub text: String,
}

/// The name of an image in a registry. Each part is in the characters that registries allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    host: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// The registry, as people call it.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whom to ask: host and port.
    #[must_use]
    pub fn authority(&self) -> &str {
        if self.host == HUB { HUB_API } else { &self.host }
    }

    /// The path in the registry.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The digest that was asked for.
    #[must_use]
    pub const fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// What a manifest is asked for by: the digest, the tag, or `latest`.
    #[must_use]
    pub fn version(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".into(),
        }
    }

    /// Its last name, and its tag.
    pub(crate) fn short(&self) -> String {
        let name = self.repository.rsplit('/').next().unwrap_or_default();
        self.tag.as_ref().map_or_else(|| name.into(), |tag| format!("{name}-{tag}"))
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let bad = || ReferenceError { text: text.chars().take(200).collect() };
        if text.len() > MAX_LEN {
            return Err(bad());
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        // A first part that could not be a directory of the hub is a host.
        let is_host = |part: &str| part.contains(['.', ':']) || part == "localhost";
        let (host, path) = match rest.split_once('/') {
            Some((host, path)) if is_host(host) => (host, path),
            _ => (HUB, rest),
        };
        let (path, tag) = match path.split_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (path, None),
        };
        let repository = if host == HUB && !path.contains('/') { format!("library/{path}") } else { path.into() };
        if !valid_host(host) || !repository.split('/').all(valid_name) || !tag.is_none_or(valid_tag) {
            return Err(bad());
        }
        Ok(Self { host: host.into(), repository, tag: tag.map(Into::into), digest })
    }
}

fn valid_host(host: &str) -> bool {
    let (name, port) = host.rsplit_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    let port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_address = bare.is_some_and(|name| name.parse::<std::net::Ipv6Addr>().is_ok());
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    port && (is_address || (is_name && !name.is_empty() && !name.starts_with(['.', '-'])))
}

fn valid_name(name: &str) -> bool {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    name.bytes().all(allowed) && edge(name.as_bytes().first()) && edge(name.as_bytes().last())
}

fn valid_tag(tag: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=128).contains(&tag.len()) && tag.bytes().all(allowed) && !tag.starts_with(['.', '-'])
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        self.tag.iter().try_for_each(|tag| write!(f, ":{tag}"))?;
        self.digest.iter().try_for_each(|digest| write!(f, "@{digest}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_as_people_expect() {
        for (text, full, version, authority) in [
            ("python:3.12-slim", "docker.io/library/python:3.12-slim", "3.12-slim", "registry-1.docker.io"),
            ("me/x", "docker.io/me/x", "latest", "registry-1.docker.io"),
            ("localhost:5000/x", "localhost:5000/x", "latest", "localhost:5000"),
            ("[::1]:5000/a/b:t", "[::1]:5000/a/b:t", "t", "[::1]:5000"),
            ("quay.example/a/b_c/d.e:V1", "quay.example/a/b_c/d.e:V1", "V1", "quay.example"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!((reference.to_string().as_str(), reference.version().as_str()), (full, version));
            assert_eq!(reference.authority(), authority);
        }
        let pinned = format!("localhost/x:1@sha256:{}", "ab".repeat(32)).parse::<Reference>().unwrap();
        assert_eq!(pinned.version(), format!("sha256:{}", "ab".repeat(32)));
        for bad in
            ["", "UPPER", "a b", "a/../b", "a//b", "x:", "x:-t", "h.x:99999/a", "x@sha256:00", "-h.x/a", "a/b:c:d"]
        {
            assert!(bad.parse::<Reference>().is_err(), "{bad}");
        }
    }
}
