//! Whom to ask for an image: mirrors and the registry itself, as containers-registries.conf(5) says.
//!
//! ```toml
//! [[registry]]
//! prefix = "docker.io/library"        # the longest that fits counts
//! location = "other.example/library"  # in its place
//! insecure = true                     # plain HTTP is all right
//! blocked = false
//! [[registry.mirror]]                 # asked first, in this order
//! location = "mirror.example/hub"
//! ```
//!
//! A registry on this computer may be spoken with over plain HTTP anyway; HTTPS is tried first everywhere.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;

use serde::Deserialize;

use super::Settings;
use super::http::RegistryError;
use crate::reference::Reference;

const MAX_FILE: u64 = 1 << 20;

/// A repository of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// Name or address, and port.
    pub(super) host: String,
    pub(super) repository: String,
    pub(super) may_be_plain: bool,
}

impl Endpoint {
    fn new(host: &str, repository: &str, insecure: bool) -> Self {
        let mut endpoint = Self { host: host.into(), repository: repository.into(), may_be_plain: insecure };
        endpoint.may_be_plain |= endpoint.is_local();
        endpoint
    }

    /// On this computer.
    pub(super) fn is_local(&self) -> bool {
        let bracketed = self.host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let name = bracketed.map_or_else(|| self.host.split(':').next().unwrap_or_default(), |(name, _)| name);
        name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

#[derive(Debug, Default, Deserialize)]
struct ConfFile {
    #[serde(default)]
    registry: Vec<RegistryEntry>,
}

#[derive(Debug, Deserialize)]
struct RegistryEntry {
    prefix: Option<String>,
    location: Option<String>,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    blocked: bool,
    #[serde(default)]
    mirror: Vec<MirrorEntry>,
}

#[derive(Debug, Deserialize)]
struct MirrorEntry {
    location: String,
    #[serde(default)]
    insecure: bool,
}

impl RegistryEntry {
    fn prefix(&self) -> &str {
        self.prefix.as_deref().or(self.location.as_deref()).unwrap_or_default()
    }
}

/// All that the settings say.
#[derive(Debug, Default)]
pub(super) struct Endpoints(ConfFile);

impl Endpoints {
    pub(super) fn read(settings: &Settings) -> Result<Self, RegistryError> {
        let Some(path) = &settings.registries_conf else { return Ok(Self::default()) };
        let mut text = String::new();
        let file = File::open(path).map_err(RegistryError::file(path))?;
        file.take(MAX_FILE).read_to_string(&mut text).map_err(RegistryError::file(path))?;
        let malformed = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let conf = toml::from_str(&text).map_err(|error| RegistryError::file(path)(malformed(error)))?;
        Ok(Self(conf))
    }

    /// In the order they are to be asked; none when it is blocked.
    pub(super) fn of(&self, reference: &Reference) -> Vec<Endpoint> {
        let full = format!("{}/{}", reference.host(), reference.repository());
        let rest = |prefix: &str| {
            let rest = full.strip_prefix(prefix).filter(|_| !prefix.is_empty())?;
            (rest.is_empty() || rest.starts_with('/')).then_some(rest)
        };
        let fitting = self.0.registry.iter().filter_map(|entry| Some((entry, rest(entry.prefix())?)));
        let Some((entry, rest)) = fitting.max_by_key(|(entry, _)| entry.prefix().len()) else {
            return vec![Endpoint::new(reference.authority(), reference.repository(), false)];
        };
        if entry.blocked {
            return Vec::new();
        }
        let placed = |location: &str, insecure| {
            let name = format!("{}{rest}", location.trim_end_matches('/'));
            let (host, repository) = name.split_once('/')?;
            Some(Endpoint::new(host, repository, insecure))
        };
        let mirrors = entry.mirror.iter().filter_map(|mirror| placed(&mirror.location, mirror.insecure));
        let moved = entry.location.as_deref().filter(|location| *location != entry.prefix());
        let own = match moved {
            Some(location) => placed(location, entry.insecure),
            None => Some(Endpoint::new(reference.authority(), reference.repository(), entry.insecure)),
        };
        mirrors.chain(own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(conf: &str, name: &str) -> Vec<String> {
        let endpoints = Endpoints(toml::from_str(conf).unwrap());
        let found = endpoints.of(&name.parse().unwrap()).into_iter();
        found.map(|e| format!("{}{}/{}", if e.may_be_plain { "~" } else { "" }, e.host, e.repository)).collect()
    }

    #[test]
    fn mirrors_come_first_and_the_longest_prefix_counts() {
        let conf = r#"
            [[registry]]
            prefix = "docker.io"
            [[registry.mirror]]
            location = "m.test/hub/"
            [[registry.mirror]]
            location = "n.test:5000"
            insecure = true
            [[registry]]
            prefix = "docker.io/library/secret"
            blocked = true
            [[registry]]
            location = "old.test"
            insecure = true
            [[registry]]
            prefix = "moved.test/a"
            location = "new.test/b"
        "#;
        let hub = ["m.test/hub/library/x", "~n.test:5000/library/x", "registry-1.docker.io/library/x"];
        assert_eq!(asked(conf, "x"), hub);
        assert_eq!(asked(conf, "secret"), [""; 0]);
        assert_eq!(asked(conf, "old.test/y"), ["~old.test/y"]);
        assert_eq!(asked(conf, "moved.test/a/c"), ["new.test/b/c"]);
        assert_eq!(asked(conf, "moved.test/ab"), ["moved.test/ab"]);
        assert_eq!(asked("", "localhost:5000/x"), ["~localhost:5000/x"]);
        assert_eq!(asked("", "127.0.0.2/x"), ["~127.0.0.2/x"]);
        assert_eq!(asked("", "[::1]:80/x"), ["~[::1]:80/x"]);
        assert_eq!(asked("", "example.test/x"), ["example.test/x"]);
    }
}
