//! The documents of an image: indexes, manifests, configurations, of OCI and of docker.
//!
//! Each is JSON of bounded length; fields of others are passed over.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::digest::Digest;

/// No document is longer.
pub(crate) const MAX_DOCUMENT: u64 = 4 << 20;
/// No image has more layers; docker stops at 127.
pub(crate) const MAX_LAYERS: usize = 512;
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const FULL_NAME: &str = "io.containerd.image.name";

/// Points to a blob.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Descriptor {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) platform: Option<PlatformFile>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    pub(crate) const fn new(digest: Digest, size: u64) -> Self {
        Self { digest, size, platform: None, annotations: None }
    }

    /// Whether a layout calls it so.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let annotations = self.annotations.iter().flatten();
        annotations.into_iter().any(|(key, value)| (key == REF_NAME || key == FULL_NAME) && value == name)
    }

    /// Whether it is some other thing that lies beside images, such as a signature or how an image was built.
    fn is_attached(&self) -> bool {
        self.annotations.iter().flatten().any(|(key, _)| key == "vnd.docker.reference.type")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct PlatformFile {
    architecture: String,
    os: String,
    variant: Option<String>,
}

impl fmt::Display for PlatformFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

/// Not a platform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a platform; one is linux/amd64")]
pub struct PlatformError {
    /// What is not one.
    pub text: String,
}

/// An operating system and a kind of CPU.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl Default for Platform {
    /// What our guests run.
    fn default() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { os: "linux".into(), architecture: architecture.into(), variant: None }
    }
}

impl FromStr for Platform {
    type Err = PlatformError;

    fn from_str(text: &str) -> Result<Self, PlatformError> {
        let mut parts = text.split('/').map(str::to_owned);
        let (os, architecture, variant) = (parts.next(), parts.next(), parts.next());
        match (os, architecture, parts.next()) {
            (Some(os), Some(architecture), None) if !os.is_empty() && !architecture.is_empty() => {
                Ok(Self { os, architecture, variant })
            }
            _ => Err(PlatformError { text: text.into() }),
        }
    }
}

impl TryFrom<String> for Platform {
    type Error = PlatformError;

    fn try_from(text: String) -> Result<Self, PlatformError> {
        text.parse()
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

impl Platform {
    /// Whether an image for `found` can run here.
    pub(crate) fn fits(&self, found: &PlatformFile) -> bool {
        let variant = self.variant.is_none() || self.variant == found.variant;
        self.os == found.os && self.architecture == found.architecture && variant
    }
}

/// An index (several images) or a manifest (one), told apart by what they contain. What could be both is neither: its
/// digest would stand for one thing here and for another elsewhere.
#[derive(Debug, Deserialize)]
#[serde(try_from = "DocumentFile")]
pub(crate) enum Document {
    Index(Index),
    Manifest(Manifest),
}

#[derive(Deserialize)]
struct DocumentFile {
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

impl TryFrom<DocumentFile> for Document {
    type Error = &'static str;

    fn try_from(file: DocumentFile) -> Result<Self, &'static str> {
        match file {
            DocumentFile { manifests: Some(manifests), config: None, layers: None } => {
                Ok(Self::Index(Index { manifests }))
            }
            DocumentFile { manifests: None, config: Some(config), layers: Some(layers) } => {
                Ok(Self::Manifest(Manifest { config, layers }))
            }
            DocumentFile { manifests: None, .. } => Err("neither an index nor the manifest of an image"),
            DocumentFile { .. } => Err("an index and a manifest at once"),
        }
    }
}

/// Images for several platforms, or under several names.
#[derive(Debug, Deserialize)]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Descriptor>,
}

impl Index {
    /// The image for a platform: one that says so, else the only one that says nothing.
    pub(crate) fn choose(&self, platform: &Platform) -> Option<&Descriptor> {
        let images = || self.manifests.iter().filter(|found| !found.is_attached());
        let said = images().find(|found| found.platform.as_ref().is_some_and(|found| platform.fits(found)));
        let mut silent = images().filter(|found| found.platform.is_none());
        said.or_else(|| silent.next().filter(|_| silent.next().is_none()))
    }

    /// Those that may be for a platform, each once.
    pub(crate) fn fitting(&self, platform: &Platform) -> Vec<&Descriptor> {
        let images = self.manifests.iter().filter(|found| !found.is_attached());
        let mut fitting: Vec<&Descriptor> = Vec::new();
        for found in images.filter(|found| found.platform.as_ref().is_none_or(|found| platform.fits(found))) {
            if fitting.iter().all(|one| one.digest != found.digest) {
                fitting.push(found);
            }
        }
        fitting
    }

    /// What there is instead, for a person.
    pub(crate) fn platforms(&self) -> String {
        let said = self.manifests.iter().filter_map(|found| found.platform.as_ref());
        let names: Vec<_> = said.take(20).map(ToString::to_string).collect();
        names.join(", ")
    }
}

/// An image: how it is run, and its layers from the lowest on.
#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// What `docker save` writes beside the layers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DockerManifest {
    pub(crate) config: String,
    pub(crate) repo_tags: Option<Vec<String>>,
    pub(crate) layers: Vec<String>,
}

/// An image's configuration.
#[derive(Debug, Deserialize)]
pub(crate) struct ConfigFile {
    #[serde(flatten)]
    pub(crate) platform: PlatformFile,
    #[serde(default)]
    pub(crate) config: Option<RunFile>,
    pub(crate) rootfs: RootFile,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RootFile {
    #[serde(default)]
    pub(crate) diff_ids: Vec<Digest>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct RunFile {
    #[serde(default)]
    pub(crate) env: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) entrypoint: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) cmd: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) working_dir: Option<String>,
    #[serde(default)]
    pub(crate) user: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_has_an_image_for_us() {
        let digest = |n: u8| format!("sha256:{}", format!("{n:02x}").repeat(32));
        let text = format!(
            r#"{{"schemaVersion": 2, "manifests": [
              {{"digest": "{}", "size": 1, "platform": {{"os": "linux", "architecture": "arm64", "variant": "v8"}}}},
              {{"digest": "{}", "size": 1, "platform": {{"os": "linux", "architecture": "amd64"}}}},
              {{"digest": "{}", "size": 1, "annotations": {{"vnd.docker.reference.type": "attestation-manifest"}}}}]}}"#,
            digest(1),
            digest(2),
            digest(3)
        );
        let Document::Index(index) = serde_json::from_str(&text).unwrap() else { panic!("no index") };
        let chosen =
            |platform: &str| index.choose(&platform.parse().unwrap()).map(|found| found.digest.hex()[..2].to_owned());
        assert_eq!(chosen("linux/amd64").as_deref(), Some("02"));
        assert_eq!(chosen("linux/arm64/v8").as_deref(), Some("01"));
        assert_eq!((chosen("linux/arm64/v7"), chosen("windows/amd64")), (None, None));
        assert_eq!(index.platforms(), "linux/arm64, linux/amd64");
        assert_eq!(Platform::default().to_string(), "linux/amd64");
        for bad in ["", "linux", "linux/", "a/b/c/d"] {
            assert!(bad.parse::<Platform>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_document_is_one_thing() {
        let descriptor = format!(r#"{{"digest": "sha256:{}", "size": 1}}"#, "ab".repeat(32));
        let parsed = |text: &str| serde_json::from_str::<Document>(&text.replace('D', &descriptor));
        assert!(matches!(parsed(r#"{"manifests": [D]}"#), Ok(Document::Index(_))));
        assert!(matches!(parsed(r#"{"config": D, "layers": [D], "subject": D}"#), Ok(Document::Manifest(_))));
        for (text, named) in [
            (r#"{"manifests": [D], "config": D, "layers": [D]}"#, "at once"),
            (r#"{"manifests": [], "layers": []}"#, "at once"),
            (r#"{"config": D}"#, "neither"),
            ("{}", "neither"),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
