//! Images in registries, by the distribution protocol of OCI: fetched once, kept by digest for all images.
//!
//! ```text
//! GET /v2/                            https, or http where that is allowed; who must be asked for a token
//! GET /v2/<name>/manifests/<version>  which image, for which platform
//! GET /v2/<name>/blobs/<digest>       how it is run, and its layers; continued where a connection broke
//! ```
//!
//! A registry is hostile: what it sends is bounded, compared with its digest, and only then given its name in the cache.
//! Credentials go to the registry they are for and to whom it says that tokens are had from, and never over plain HTTP
//! unless the registry itself is spoken with so.

mod auth;
mod credentials;
mod endpoints;
mod fetch;
mod http;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use types::progress::Progress;

use crate::blob::Blob;
use crate::digest::Digest;
use crate::image::{Blobs, Found, Image, ImageError};
use crate::manifest::{Descriptor, MAX_DOCUMENT, Platform};
use crate::reference::Reference;

pub use credentials::CredentialsError;
pub use http::RegistryError;

use endpoints::{Endpoint, Endpoints};
use http::Session;

/// What we understand, best first.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json, \
                         application/vnd.docker.distribution.manifest.v2+json";
const LAYERS: &str = "layers-v1";

/// Where to look for what users have set up, and how patient to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Files with credentials, the first that has some for a registry wins.
    pub auth_files: Vec<PathBuf>,
    /// Mirrors and plain-HTTP registries (containers-registries.conf).
    pub registries_conf: Option<PathBuf>,
    /// Directories with `HOST/*.crt`: who else may sign for a registry.
    pub certificate_dirs: Vec<PathBuf>,
    /// How long nothing may come.
    pub idle: Duration,
    /// Before asking again; it doubles.
    pub pause: Duration,
}

impl Settings {
    /// As docker and podman have it, by this process's environment.
    #[must_use]
    pub fn from_env() -> Self {
        let dir = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = dir("HOME");
        let config = dir("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
        let docker = dir("DOCKER_CONFIG").or_else(|| home.as_ref().map(|home| home.join(".docker")));
        let containers = |base: Option<PathBuf>| base.map(|base| base.join("containers/auth.json"));
        let auth_files = [
            dir("REGISTRY_AUTH_FILE"),
            containers(dir("XDG_RUNTIME_DIR")),
            containers(config.clone()),
            docker.map(|docker| docker.join("config.json")),
        ];
        let own = config.as_ref().map(|config| config.join("containers/registries.conf"));
        let conf = dir("CONTAINERS_REGISTRIES_CONF").or_else(|| own.filter(|own| own.is_file()));
        let system = PathBuf::from("/etc/containers/registries.conf");
        let certs = config.map(|config| config.join("containers/certs.d"));
        let system_certs = ["/etc/containers/certs.d", "/etc/docker/certs.d"].map(PathBuf::from);
        Self {
            auth_files: auth_files.into_iter().flatten().collect(),
            registries_conf: conf.or_else(|| Some(system).filter(|system| system.is_file())),
            certificate_dirs: certs.into_iter().chain(system_certs).collect(),
            idle: Duration::from_secs(60),
            pause: Duration::from_millis(500),
        }
    }
}

impl Image {
    /// Fetches what is not in the cache yet. Layers are kept there under their digests, for other images too.
    ///
    /// # Errors
    /// When no registry or mirror has it, lets us have it, or sends what its digests say.
    pub fn pull(
        reference: &Reference,
        platform: &Platform,
        cache: &Path,
        settings: &Settings,
        progress: &dyn Progress,
    ) -> Result<Self, ImageError> {
        let dir = cache.join(LAYERS);
        fs::create_dir_all(&dir).map_err(ImageError::read(&dir))?;
        let endpoints = Endpoints::read(settings)?;
        let mut last = None;
        for endpoint in endpoints.of(reference) {
            let pulled = Pull::start(&endpoint, reference, &dir, settings, progress);
            match pulled.and_then(|(pull, root)| Found::resolve(&pull, &root, platform)) {
                Ok(found) => return Ok(Self::of(found)),
                // The image is what it is, wherever it is asked for.
                Err(error @ (ImageError::Platform { .. } | ImageError::Layers { .. })) => return Err(error),
                Err(error) => {
                    log::info!("{} does not have {reference} for us: {error}", endpoint.host);
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| RegistryError::Blocked { name: reference.to_string() }.into()))
    }
}

/// An image that is being fetched.
struct Pull<'a> {
    session: Session<'a>,
    dir: &'a Path,
    progress: &'a dyn Progress,
    root: (Digest, Vec<u8>),
}

impl<'a> Pull<'a> {
    fn start(
        endpoint: &'a Endpoint,
        reference: &Reference,
        dir: &'a Path,
        settings: &'a Settings,
        progress: &'a dyn Progress,
    ) -> Result<(Self, Descriptor), ImageError> {
        let stage = progress.stage(&format!("Asking {} for {}", endpoint.host, endpoint.repository), None);
        let session = Session::open(endpoint, settings)?;
        let text = manifest(&session, &reference.version())?;
        drop(stage);
        let found = reference.digest().map_or_else(|| Digest::of(b""), Clone::clone).hasher();
        let digest = {
            let mut hasher = found;
            hasher.update(&text);
            hasher.finish()
        };
        if let Some(expected) = reference.digest().filter(|expected| **expected != digest) {
            return Err(ImageError::Digest { expected: expected.clone(), found: digest });
        }
        let descriptor = Descriptor::new(digest.clone(), text.len() as u64);
        Ok((Self { session, dir, progress, root: (digest, text) }, descriptor))
    }
}

fn manifest(session: &Session<'_>, version: &str) -> Result<Vec<u8>, RegistryError> {
    session.small(&format!("manifests/{version}"), MANIFESTS, MAX_DOCUMENT)
}

impl Blobs for Pull<'_> {
    fn blob(&self, descriptor: &Descriptor) -> Result<Blob, ImageError> {
        let path = fetch::fetch(&self.session, descriptor, self.dir, self.progress)?;
        let blob = Blob::open(&path).map_err(ImageError::read(&path))?;
        if blob.len() == descriptor.size {
            return Ok(blob);
        }
        Err(ImageError::Size { digest: descriptor.digest.clone(), expected: descriptor.size, found: blob.len() })
    }

    fn manifest(&self, descriptor: &Descriptor) -> Result<Vec<u8>, ImageError> {
        if descriptor.digest == self.root.0 {
            return Ok(self.root.1.clone());
        }
        let text = manifest(&self.session, &descriptor.digest.to_string())?;
        let mut hasher = descriptor.digest.hasher();
        hasher.update(&text);
        let (expected, found) = (descriptor.digest.clone(), hasher.finish());
        if found == expected { Ok(text) } else { Err(ImageError::Digest { expected, found }) }
    }
}

#[cfg(test)]
mod tests;
