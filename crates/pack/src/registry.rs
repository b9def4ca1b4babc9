//! A hub: one file that says where the packs of many are.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::http::{Client, HttpError};
use crate::manifest::{Sha256, shown};

const MAX_BYTES: u64 = 8 << 20;
const SCHEMA: u32 = 1;
const LATEST: &str = "latest";
const FILE: &str = "registry.json";
const MAX_NAME: usize = 128;

/// Why a hub did not say where a pack is.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The name is none.
    #[error("`{text}` is neither an address nor the name of a package, which is OWNER/NAME or OWNER/NAME@VERSION")]
    Name {
        /// What it is.
        text: String,
    },
    /// The hub does not answer.
    #[error("the hub does not answer")]
    Http(#[from] HttpError),
    /// The hub's file is none.
    #[error("the hub's {FILE} cannot be understood: {problem}")]
    Damaged {
        /// What is wrong with it.
        problem: String,
    },
    /// A later layout.
    #[error("the hub's {FILE} is of version {found}, and this forkd reads version {SCHEMA}; use a newer forkd")]
    Newer {
        /// Its version.
        found: u32,
    },
    /// No such package.
    #[error("the hub has no package `{owner_name}`")]
    Unknown {
        /// Its name.
        owner_name: String,
    },
    /// No such version.
    #[error("package `{owner_name}` has no version `{version}`; there is {}", there.join(", "))]
    Version {
        /// Its name.
        owner_name: String,
        /// What was asked for.
        version: String,
        /// What there is.
        there: Vec<String>,
    },
}

/// The name of a package: `owner/name[@version]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    owner_name: String,
    version: String,
}

impl FromStr for Package {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        let (owner_name, version) = text.split_once('@').unwrap_or((text, LATEST));
        let is_word = |word: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            !word.is_empty() && word.len() <= MAX_NAME && word.bytes().all(plain)
        };
        match owner_name.split_once('/') {
            Some((owner, name)) if [owner, name, version].into_iter().all(is_word) => {
                Ok(Self { owner_name: owner_name.into(), version: version.into() })
            }
            _ => Err(RegistryError::Name { text: shown(text) }),
        }
    }
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.owner_name, self.version)
    }
}

/// Where a pack is, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Version {
    /// Where.
    pub url: String,
    /// Its sum.
    #[serde(default)]
    pub sha256: Option<Sha256>,
    /// Its length.
    #[serde(default)]
    pub size_bytes: Option<u64>,
}

/// The rest of what hubs say is for people.
#[derive(Deserialize)]
struct Registry {
    packages: BTreeMap<String, Versions>,
}

#[derive(Deserialize)]
struct Versions {
    versions: BTreeMap<String, Version>,
}

#[derive(Deserialize)]
struct Header {
    schema_version: u32,
}

/// Asks a hub where a package is. `hub` is the address of its file, or of the directory that has it if it ends with `/`.
///
/// # Errors
/// When it does not know.
pub fn find(client: &Client, hub: &str, package: &Package) -> Result<Version, RegistryError> {
    let file = if hub.ends_with('/') { format!("{hub}{FILE}") } else { hub.to_owned() };
    parse(&client.get_small(&file, MAX_BYTES)?, package)
}

fn parse(bytes: &[u8], package: &Package) -> Result<Version, RegistryError> {
    let damaged = |error: serde_json::Error| RegistryError::Damaged { problem: shown(&error.to_string()) };
    let Header { schema_version } = serde_json::from_slice(bytes).map_err(damaged)?;
    if schema_version != SCHEMA {
        return Err(RegistryError::Newer { found: schema_version });
    }
    let mut registry: Registry = serde_json::from_slice(bytes).map_err(damaged)?;
    let Package { owner_name, version } = package.clone();
    let Some(mut found) = registry.packages.remove(&owner_name) else {
        return Err(RegistryError::Unknown { owner_name });
    };
    match found.versions.remove(&version) {
        Some(found) => Ok(found),
        None => {
            let there = found.versions.into_keys().map(|name| shown(&name)).collect();
            Err(RegistryError::Version { owner_name, version, there })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTRY: &str = r#"{"schema_version": 1, "packages": {"me/py": {"description": "x", "versions": {
        "latest": {"url": "https://example.org/py", "memory_mib": 512},
        "v1": {"url": "https://example.org/py1", "size_bytes": 5,
               "sha256": "0000000000000000000000000000000000000000000000000000000000000001"}}}}}"#;

    fn look(name: &str) -> Result<Version, RegistryError> {
        parse(REGISTRY.as_bytes(), &name.parse()?)
    }

    #[test]
    fn packages_are_found_by_name_and_version() {
        let latest = look("me/py").unwrap();
        assert_eq!((&latest.url[..], latest.sha256, latest.size_bytes), ("https://example.org/py", None, None));
        assert_eq!(look("me/py@latest").unwrap(), latest);
        let first = look("me/py@v1").unwrap();
        assert!(first.sha256.is_some() && first.size_bytes == Some(5));
    }

    #[test]
    fn what_is_not_there_is_told_with_what_is() {
        let missing = look("me/py@v2").unwrap_err().to_string();
        assert!(missing.ends_with("there is latest, v1"), "{missing}");
        assert!(matches!(look("you/py"), Err(RegistryError::Unknown { .. })));
        for bad in ["", "py", "me/", "/py", "me/py@", "me/py/x", "../py@x/y", "me/p y", &"x/".repeat(3)] {
            assert!(matches!(look(bad), Err(RegistryError::Name { .. })), "{bad:?}");
        }
        let package = "me/py".parse().unwrap();
        assert!(matches!(parse(b"{\"schema_version\": 2}", &package), Err(RegistryError::Newer { found: 2 })));
        assert!(matches!(parse(b"{}", &package), Err(RegistryError::Damaged { .. })));
    }
}
