//! What the root file system of a recipe consists of.

use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;

use oci::{DiskSize, Platform, Source};
use serde::Deserialize;
use types::parse_bytes;

use super::package::{NpmPackage, PackageName, PipPackage, Suite};
use super::word::{checked_text, described};

/// The smallest disk that anything boots from, and more than anybody needs as a root.
const DISK_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=1 << 40;
/// More than any sane recipe; bounds the command line.
const MAX_PACKAGES: usize = 1000;
/// Longer than any reference to an image.
const MAX_SOURCE: usize = 4096;
/// What can be written to a disk of which nothing is said. It costs nothing until it is.
const FREE: u64 = 2 << 30;

/// What lies at the bottom, and the packages on it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "BaseFile")]
pub struct Base {
    /// The bottom.
    pub bottom: Bottom,
    /// Packages of Debian.
    pub packages: BTreeSet<PackageName>,
    /// Packages of PyPI, for the Python that is there.
    pub pip: BTreeSet<PipPackage>,
    /// Packages of npm, for everybody.
    pub npm: BTreeSet<NpmPackage>,
}

impl Base {
    /// Debian packages are to be installed into an image.
    #[must_use]
    pub fn has_extra(&self) -> bool {
        matches!(self.bottom, Bottom::Image { .. }) && !self.packages.is_empty()
    }
}

/// What lies at the bottom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bottom {
    /// A Debian release.
    Debian(Suite),
    /// A container image.
    Image {
        /// Where it is.
        name: ImageName,
        /// Which of the images for several platforms.
        platform: Platform,
    },
}

/// The table `[base]`.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Base"))]
#[serde(deny_unknown_fields)]
pub(super) struct BaseFile {
    /// A Debian release, such as bookworm. Either this or `image`.
    debian: Option<Suite>,
    /// A container image: what `forkd from-image` takes, such as python:3.12-slim or docker-archive:app.tar. Files are
    /// looked for beside the recipe.
    image: Option<ImageName>,
    /// Which of an image's platforms, such as linux/amd64; what guests run here when nothing is said.
    #[cfg_attr(test, schemars(with = "Option<PlatformWord>"))]
    platform: Option<Platform>,
    /// Debian packages to install. Into an image, if it is made of a Debian whose packages this computer can get.
    #[serde(default)]
    packages: Vec<PackageName>,
    /// Packages of PyPI, each as name==version, with all that they need: wheels, unpacked to where the image's Python
    /// looks for them. Nothing of them is run.
    #[serde(default)]
    pip: Vec<PipPackage>,
    /// Packages of npm, each as name@version, with all that they need, unpacked to /usr/local/lib/node_modules. Nothing of
    /// them is run.
    #[serde(default)]
    npm: Vec<NpmPackage>,
}

impl TryFrom<BaseFile> for Base {
    type Error = String;

    fn try_from(file: BaseFile) -> Result<Self, String> {
        let BaseFile { debian, image, platform, packages, pip, npm } = file;
        let bottom = match (debian, image) {
            (Some(_), None) if platform.is_some() => {
                return Err("platform is about images, and it is based on debian".into());
            }
            (Some(suite), None) => Bottom::Debian(suite),
            (None, Some(name)) => Bottom::Image { name, platform: platform.unwrap_or_default() },
            (None, None) => return Err("say what it is based on: debian = \"bookworm\", or image = \"...\"".into()),
            (Some(_), Some(_)) => return Err("it is based on debian or on an image, not on both".into()),
        };
        for (what, count) in [("packages", packages.len()), ("pip", pip.len()), ("npm", npm.len())] {
            if count > MAX_PACKAGES {
                return Err(format!("{what}: more than {MAX_PACKAGES} packages"));
            }
        }
        let (packages, pip) = (packages.into_iter().collect(), pip.into_iter().collect());
        Ok(Self { bottom, packages, pip, npm: npm.into_iter().collect() })
    }
}

/// Not an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an image; write what `forkd from-image` takes, such as python:3.12-slim or oci:./layout")]
pub struct ImageNameError {
    text: String,
}

checked_text! {
    /// Where a container image is, as a person says it.
    ImageName, ImageNameError, r"^[^\u0000-\u0020]+$"
}

impl ImageName {
    /// Where it is; files are looked for in `dir`.
    #[must_use]
    pub fn source(&self, dir: &Path) -> Source {
        Source::parse_in(dir, &self.0).expect("it was looked at when it was read")
    }
}

impl FromStr for ImageName {
    type Err = ImageNameError;

    fn from_str(text: &str) -> Result<Self, ImageNameError> {
        let fits = text.len() <= MAX_SOURCE && !text.contains(|c: char| c.is_control() || c == ' ');
        match text.parse::<Source>() {
            Ok(_) if fits => Ok(Self(text.into())),
            _ => Err(ImageNameError { text: text.into() }),
        }
    }
}

/// What the schema says of a platform.
#[cfg(test)]
struct PlatformWord;
described! { PlatformWord, { "type": "string", "pattern": "^[^/]+/[^/]+(/[^/]*)?$" } }

/// How large the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "DiskFile")]
pub struct Disk(pub DiskSize);

impl Default for Disk {
    fn default() -> Self {
        Self(DiskSize::Free(FREE))
    }
}

/// The table `[disk]`.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Disk"))]
#[serde(deny_unknown_fields)]
pub(super) struct DiskFile {
    /// Its size, such as 2G; from 64M to 1T, in steps of 4K.
    size: Option<ByteSize>,
    /// Or how much more it has than is in it; 2G when nothing is said. What is not used costs nothing.
    free: Option<ByteSize>,
}

impl TryFrom<DiskFile> for Disk {
    type Error = String;

    fn try_from(file: DiskFile) -> Result<Self, String> {
        match (file.size, file.free) {
            (None, None) => Ok(Self::default()),
            (Some(_), Some(_)) => {
                Err("a disk has a size, or is so much larger than what is in it; say one of them".into())
            }
            (None, Some(free)) if free.0 <= *DISK_BYTES.end() => Ok(Self(DiskSize::Free(free.0))),
            (Some(size), None) if DISK_BYTES.contains(&size.0) && size.0.is_multiple_of(4096) => {
                Ok(Self(DiskSize::Bytes(size.0)))
            }
            (Some(ByteSize(bytes)), None) | (None, Some(ByteSize(bytes))) => {
                Err(format!("a disk has 64M to 1T, in steps of 4K; {bytes} bytes were asked for"))
            }
        }
    }
}

/// A number of bytes as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct ByteSize(u64);

described! { ByteSize, { "type": "string", "pattern": "^[0-9]+ ?([KMGTkmgt]([iI]?[bB])?|[bB])?$" } }

impl TryFrom<String> for ByteSize {
    type Error = types::SizeError;

    fn try_from(text: String) -> Result<Self, types::SizeError> {
        parse_bytes(&text).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_arrives() {
        let text = "debian = \"bookworm\"\npackages = [\"b1\", \"a1\", \"b1\"]\npip = [\"x==1\"]\nnpm = [\"y@1.0.0\"]";
        let base: Base = toml::from_str(text).unwrap();
        assert_eq!(base.bottom, Bottom::Debian("bookworm".parse().unwrap()));
        assert_eq!(base.packages.iter().map(PackageName::as_str).collect::<Vec<_>>(), ["a1", "b1"]);
        assert_eq!((base.pip.first().unwrap().as_str(), base.npm.first().unwrap().as_str()), ("x==1", "y@1.0.0"));
        let base: Base = toml::from_str("image = \"docker-archive:app.tar\"").unwrap();
        let Bottom::Image { name, platform } = base.bottom else { panic!("no image") };
        assert_eq!(name.source(Path::new("/r")).to_string(), "docker-archive:/r/app.tar");
        assert_eq!(platform, Platform::default());
        let base: Base = toml::from_str("image = \"x\"\nplatform = \"linux/arm64/v8\"").unwrap();
        let Bottom::Image { platform, .. } = base.bottom else { panic!("no image") };
        assert_eq!(platform.to_string(), "linux/arm64/v8");
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        let many = format!("debian = \"bookworm\"\npackages = [{}]", "\"a1\",".repeat(MAX_PACKAGES + 1));
        for (text, named) in [
            ("", "say what it is based on"),
            ("debian = \"bookworm\"\nimage = \"x\"", "not on both"),
            ("debian = \"sid\"\nplatform = \"linux/amd64\"", "platform is about images"),
            ("image = \"x\"\nplatform = \"amd64\"", "`amd64` is not a platform"),
            ("debian = \"-x\"", "`-x` is not a Debian release"),
            ("image = \"\"", "`` is not an image"),
            ("image = \"a b\"", "`a b` is not an image"),
            ("debian = \"sid\"\npackages = [\"--purge\"]", "`--purge` is not a Debian package"),
            ("debian = \"sid\"\npip = [\"numpy\"]", "`numpy` is not a package of PyPI in one version"),
            ("debian = \"sid\"\nnpm = [\"x@latest\"]", "`x@latest` is not a package of npm in one version"),
            (&many, "more than 1000 packages"),
            ("debian = \"sid\"\nmirror = \"x\"", "mirror"),
        ] {
            let error = toml::from_str::<Base>(text).unwrap_err().to_string();
            assert!(error.contains(named), "{named:?} is not in: {error}");
        }
    }

    #[test]
    fn disk_sizes_are_bounded() {
        let disk = |text: &str| toml::from_str::<Disk>(text).map(|disk| disk.0);
        assert_eq!(disk("").unwrap(), DiskSize::Free(FREE));
        assert_eq!(disk("size = \"64M\"").unwrap(), DiskSize::Bytes(64 << 20));
        assert_eq!(disk("size = \"1T\"").unwrap(), DiskSize::Bytes(1 << 40));
        assert_eq!(disk("free = \"100M\"").unwrap(), DiskSize::Free(100 << 20));
        for (text, named) in [
            ("size = \"0\"", "64M to 1T"),
            ("size = \"63M\"", "64M to 1T"),
            ("size = \"2T\"", "64M to 1T"),
            ("size = \"67108865\"", "64M to 1T"),
            ("free = \"2T\"", "64M to 1T"),
            ("size = \"big\"", "`big` is not a size"),
            ("size = 7", "string"),
            ("size = \"1G\"\nfree = \"1G\"", "say one of them"),
            ("used = \"1G\"", "used"),
        ] {
            let error = disk(text).unwrap_err().to_string();
            assert!(error.contains(named), "{named:?} is not in: {error}");
        }
    }
}
