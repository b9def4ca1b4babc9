//! Debian packages for a container image: downloaded here as files, installed by the image's own apt in a VM.
//!
//! The image says which packages it has and of which release it is; the host's apt, told that, says what is missing and
//! gets it from where the host gets that release. So nothing of the image runs here, and a VM needs no network.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use oci::Contents;
use types::progress::Progress;

use crate::apt::{Apt, AptError};
use crate::build::ImageError;
use crate::cache::{CacheError, Staging};
use crate::debian::host_sources;
use crate::layer::{Layer, Look};
use crate::recipe::{PackageName, Suite};

/// Where the files are until they are installed.
const PLACE: &str = "/var/cache/forkd/packages";
/// What dpkg knows of ten thousand packages.
const MAX_STATUS: u64 = 64 << 20;
const MAX_RELEASE: u64 = 64 << 10;

/// Installs what was laid into the image, and leaves nothing of it. With files only, apt asks no server.
pub(crate) const INSTALL: &str = "set -e; cd /var/cache/forkd/packages; if ls ./*.deb >/dev/null 2>&1; then \
     DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends --allow-downgrades ./*.deb; fi; \
     cd /; rm -rf /var/cache/forkd/packages";

/// Why packages cannot be installed into an image.
#[derive(Debug, thiserror::Error)]
pub enum ExtraError {
    /// It has no dpkg.
    #[error("the image is not made of Debian packages, so none can be added; take what it needs from another image")]
    NoDpkg,
    /// It does not say which release it is of.
    #[error("the image's os-release names no release of Debian; Debian's packages fit no other distribution")]
    NotDebian,
    /// The host does not know where to get that release.
    #[error(
        "the image is made of Debian {suite}, and this computer's apt has no source of that release; add one to \
         /etc/apt/sources.list.d, or write a recipe whose build.run calls apt-get and whose build.egress lets it"
    )]
    NoSource {
        /// The release.
        suite: Suite,
    },
}

/// Packages that will be in an image when its steps have been run.
pub(crate) struct Extra {
    /// The layer that has them as files.
    pub(crate) layer: PathBuf,
    /// The files' names: `NAME_VERSION_ARCHITECTURE.deb`.
    pub(crate) files: Vec<String>,
}

/// The packages, and all that they need and the image has not.
pub(crate) fn fetch(
    packages: &BTreeSet<PackageName>,
    contents: &mut Contents<'_>,
    staging: &Staging<'_>,
    progress: &dyn Progress,
) -> Result<Extra, ImageError> {
    let status = contents.read("/var/lib/dpkg/status", MAX_STATUS)?.ok_or(ExtraError::NoDpkg)?;
    let suite = release(contents)?.ok_or(ExtraError::NotDebian)?;
    let stage = progress.stage(&format!("Fetching packages of Debian {suite}"), None);
    let sources = host_sources(&suite, staging, &*stage);
    if sources.is_empty() {
        return Err(ExtraError::NoSource { suite }.into());
    }
    let apt = Apt::of_image(staging, &status, &sources, &*stage).map_err(|error| match error {
        AptError::Tool(error) => ImageError::from(error),
        AptError::Cache(error) => error.into(),
    })?;
    let archives = apt.download_missing(packages.iter().map(PackageName::as_str), &*stage)?;
    let path = staging.path().join("extra.tar");
    let file = fs::File::create_new(&path).map_err(CacheError::new("create", &path))?;
    let mut layer = Layer::new(file);
    layer.directory(PLACE, Look::default())?;
    let entries = fs::read_dir(&archives).map_err(CacheError::new("list", &archives))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut files: Vec<_> = names.filter(|name| name.ends_with(".deb")).collect();
    files.sort();
    for name in &files {
        layer.copy(&archives, name, &format!("{PLACE}/{name}"), Look::default())?;
    }
    layer.finish()?;
    Ok(Extra { layer: path, files })
}

/// The Debian release that an image is made of.
fn release(contents: &mut Contents<'_>) -> Result<Option<Suite>, ImageError> {
    for path in ["/usr/lib/os-release", "/etc/os-release"] {
        if let Some(text) = contents.read(path, MAX_RELEASE)? {
            return Ok(codename(&String::from_utf8_lossy(&text)));
        }
    }
    Ok(None)
}

fn codename(os_release: &str) -> Option<Suite> {
    let value = |name: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(line.trim().trim_matches(['"', '\'']))
    };
    value("ID").filter(|id| *id == "debian")?;
    value("VERSION_CODENAME")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read() {
        let text = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nVERSION_CODENAME=bookworm\n";
        assert_eq!(codename(text).unwrap().as_str(), "bookworm");
        assert_eq!(codename("ID='debian'\nVERSION_CODENAME=\"trixie\"").unwrap().as_str(), "trixie");
        for other in ["", "ID=ubuntu\nVERSION_CODENAME=noble", "ID=debian", "ID=debian\nVERSION_CODENAME=a/b"] {
            assert_eq!(codename(other), None, "{other}");
        }
    }

    #[test]
    fn the_step_names_the_place() {
        assert_eq!(INSTALL.matches(PLACE).count(), 2);
    }
}
