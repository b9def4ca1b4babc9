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
//! Files of the directory `registries.conf.d` beside that file are read after it, in the order of their names; what a later one
//! says of a prefix counts. A prefix may be `*.example.com`, which stands for every host below that name.
//!
//! A registry on this computer may be spoken with over plain HTTP anyway; HTTPS is tried first everywhere.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

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

    /// What follows the prefix in a name that it fits.
    fn rest<'a>(&self, name: &'a str) -> Option<&'a str> {
        let prefix = self.prefix();
        if let Some(suffix) = prefix.strip_prefix('*').filter(|suffix| suffix.starts_with('.')) {
            let (host, rest) = name.split_at(name.find('/').unwrap_or(name.len()));
            return host.ends_with(suffix).then_some(rest);
        }
        let rest = name.strip_prefix(prefix).filter(|_| !prefix.is_empty())?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    }
}

/// All that the settings say.
#[derive(Debug, Default)]
pub(super) struct Endpoints(Vec<RegistryEntry>);

impl Endpoints {
    pub(super) fn read(settings: &Settings) -> Result<Self, RegistryError> {
        let mut found = Self::default();
        if let Some(path) = &settings.registries_conf {
            found.add(path)?;
        }
        for dir in &settings.registries_dirs {
            for path in drop_ins(dir)? {
                found.add(&path)?;
            }
        }
        Ok(found)
    }

    /// What one more file says comes in the place of what was said before of the same.
    fn add(&mut self, path: &Path) -> Result<(), RegistryError> {
        let mut text = String::new();
        let file = File::open(path).map_err(RegistryError::file(path))?;
        file.take(MAX_FILE).read_to_string(&mut text).map_err(RegistryError::file(path))?;
        let malformed = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let conf: ConfFile = toml::from_str(&text).map_err(|error| RegistryError::file(path)(malformed(error)))?;
        self.0.retain(|old| conf.registry.iter().all(|new| new.prefix() != old.prefix()));
        self.0.extend(conf.registry);
        Ok(())
    }

    /// In the order they are to be asked; none when it is blocked.
    pub(super) fn of(&self, reference: &Reference) -> Vec<Endpoint> {
        let full = format!("{}/{}", reference.host(), reference.repository());
        let fitting = self.0.iter().filter_map(|entry| Some((entry, entry.rest(&full)?)));
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

/// Files that add to the settings, in the order of their names.
fn drop_ins(dir: &Path) -> Result<Vec<PathBuf>, RegistryError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        entries => entries.map_err(RegistryError::file(dir))?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>();
    let mut paths = paths.map_err(RegistryError::file(dir))?;
    paths.retain(|path| path.extension().is_some_and(|end| end == "conf"));
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(conf: &str, name: &str) -> Vec<String> {
        asked_of(&Endpoints(toml::from_str::<ConfFile>(conf).unwrap().registry), name)
    }

    fn asked_of(endpoints: &Endpoints, name: &str) -> Vec<String> {
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

    #[test]
    fn drop_ins_come_after_the_file_and_replace_what_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("registries.conf");
        let drop_in =
            |name: &str, text: &str| fs::write(dir.path().join("registries.conf.d").join(name), text).unwrap();
        fs::create_dir(dir.path().join("registries.conf.d")).unwrap();
        let entry = |prefix: &str, rest: &str| format!("[[registry]]\nprefix = \"{prefix}\"\n{rest}\n");
        fs::write(&conf, entry("a.test", "blocked = true") + &entry("b.test", "location = \"c.test\"")).unwrap();
        drop_in("10-own.conf", &entry("a.test", "location = \"one.test\""));
        drop_in("20-own.conf", &(entry("a.test", "location = \"two.test\"") + &entry("d.test/x", "blocked = true")));
        drop_in("30-own.bak", "no settings at all");
        let settings = Settings {
            registries_conf: Some(conf),
            registries_dirs: vec![dir.path().join("none"), dir.path().join("registries.conf.d")],
            ..Settings::from_env()
        };
        let endpoints = Endpoints::read(&settings).unwrap();
        assert_eq!(asked_of(&endpoints, "a.test/i"), ["two.test/i"]);
        assert_eq!(asked_of(&endpoints, "b.test/i"), ["c.test/i"]);
        assert_eq!((asked_of(&endpoints, "d.test/x/i"), asked_of(&endpoints, "d.test/i").len()), (Vec::new(), 1));
        drop_in("40-broken.conf", "[[registry");
        let error = Endpoints::read(&settings).unwrap_err();
        assert!(matches!(&error, RegistryError::File { path, .. } if path.ends_with("40-broken.conf")), "{error}");
    }

    #[test]
    fn a_star_stands_for_every_host_below_a_name() {
        let conf = r#"
            [[registry]]
            prefix = "*.example.test"
            blocked = true
            [[registry]]
            prefix = "good.example.test/team"
            location = "m.test/team"
        "#;
        assert_eq!(asked(conf, "bad.example.test/x"), [""; 0]);
        assert_eq!(asked(conf, "a.b.example.test/x/y"), [""; 0]);
        assert_eq!(asked(conf, "good.example.test/team/x"), ["m.test/team/x"]);
        assert_eq!(asked(conf, "example.test/x"), ["example.test/x"]);
        assert_eq!(asked(conf, "badexample.test/x"), ["badexample.test/x"]);
    }
}
