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

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use types::progress::Progress;

use crate::blob::Blob;
use crate::digest::Digest;
use crate::image::{Blobs, Found, Image, ImageError, Layer};
use crate::manifest::{Descriptor, MAX_DOCUMENT, Platform};
use crate::reference::Reference;

pub use credentials::CredentialsError;
pub use http::RegistryError;

use endpoints::{Endpoint, Endpoints};
use fetch::Fetched;
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
    /// The `PATH` on which programs that keep credentials are looked for.
    pub programs: OsString,
    /// Mirrors and plain-HTTP registries (containers-registries.conf).
    pub registries_conf: Option<PathBuf>,
    /// Directories of files that add to it, each read after those before.
    pub registries_dirs: Vec<PathBuf>,
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
        Self::of(|name| std::env::var_os(name), rustix::process::getuid().as_raw())
    }

    /// As they have it for that user with these variables.
    fn of(variable: impl Fn(&str) -> Option<OsString>, uid: u32) -> Self {
        let dir = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = dir("HOME");
        let config = dir("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
        let docker = dir("DOCKER_CONFIG").or_else(|| home.as_ref().map(|home| home.join(".docker")));
        let runtime = dir("XDG_RUNTIME_DIR").map(|dir| dir.join("containers"));
        // Where podman puts them when nobody has logged in, as with sudo.
        let runtime = runtime.unwrap_or_else(|| format!("/run/containers/{uid}").into());
        let auth_files = [
            dir("REGISTRY_AUTH_FILE"),
            Some(runtime.join("auth.json")),
            config.as_ref().map(|config| config.join("containers/auth.json")),
            docker.map(|docker| docker.join("config.json")),
        ];
        let own = config.as_ref().map(|config| config.join("containers/registries.conf"));
        let own = own.filter(|own| own.is_file());
        let own_dir = config.as_ref().map(|config| config.join("containers/registries.conf.d"));
        // Who has a file of his own has nothing of the system's.
        let system_dir = Some(PathBuf::from("/etc/containers/registries.conf.d")).filter(|_| own.is_none());
        let conf = dir("CONTAINERS_REGISTRIES_CONF").or(own);
        let system = PathBuf::from("/etc/containers/registries.conf");
        let certs = config.map(|config| config.join("containers/certs.d"));
        let system_certs = ["/etc/containers/certs.d", "/etc/docker/certs.d"].map(PathBuf::from);
        Self {
            auth_files: auth_files.into_iter().flatten().collect(),
            programs: variable("PATH").unwrap_or_default(),
            registries_conf: conf.or_else(|| Some(system).filter(|system| system.is_file())),
            registries_dirs: system_dir.into_iter().chain(own_dir).collect(),
            certificate_dirs: certs.into_iter().chain(system_certs).collect(),
            idle: Duration::from_secs(60),
            pause: Duration::from_millis(500),
        }
    }
}

/// Downloads of layers that nobody goes on with, and what they take: looked at, or removed.
///
/// # Errors
/// When the cache cannot be read.
pub fn leftovers(cache: &Path, remove: bool) -> Result<Vec<(String, u64)>, RegistryError> {
    let dir = cache.join(LAYERS);
    fetch::leftovers(&dir, remove).map_err(RegistryError::file(&dir))
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
                Err(
                    error @ (ImageError::Platform { .. } | ImageError::Layers { .. } | ImageError::TooLarge { .. }),
                ) => {
                    return Err(error);
                }
                Err(error) => {
                    log::info!("{} does not have {reference} for us: {error}", endpoint.host);
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| RegistryError::Blocked { name: reference.to_string() }.into()))
    }

    /// Compares the layers that were in the cache already with their digests, and takes those out of it that are damaged.
    /// When there were some, the image is good for nothing, and pulling it again fetches them.
    ///
    /// # Errors
    /// When a layer cannot be read or removed.
    pub fn drop_damaged(&self, progress: &dyn Progress) -> Result<bool, ImageError> {
        let unchecked = || self.layers.iter().filter_map(|layer| Some((layer, layer.unchecked.as_ref()?)));
        let bytes = unchecked().map(|(layer, _)| layer.blob.len()).sum();
        let stage = (bytes > 0).then(|| progress.stage("Comparing what was pulled before", Some(bytes)));
        let (mut done, mut is_damaged) = (0, false);
        for (layer, (path, digest)) in unchecked() {
            is_damaged |= fetch::drop_if_damaged(path, digest).map_err(ImageError::read(path))?;
            done += layer.blob.len();
            stage.iter().for_each(|stage| stage.advance(done));
        }
        Ok(is_damaged)
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

impl Pull<'_> {
    fn fetch(&self, descriptor: &Descriptor) -> Result<(Blob, Fetched), ImageError> {
        let fetched = fetch::fetch(&self.session, descriptor, self.dir, self.progress)?;
        let blob = Blob::open(&fetched.path).map_err(ImageError::read(&fetched.path))?;
        if blob.len() == descriptor.size {
            return Ok((blob, fetched));
        }
        Err(ImageError::Size { digest: descriptor.digest.clone(), expected: descriptor.size, found: blob.len() })
    }
}

impl Blobs for Pull<'_> {
    fn blob(&self, descriptor: &Descriptor) -> Result<Blob, ImageError> {
        self.fetch(descriptor).map(|(blob, _)| blob)
    }

    fn layer(&self, descriptor: &Descriptor, diff_id: Digest) -> Result<Layer, ImageError> {
        let (blob, Fetched { path, is_old }) = self.fetch(descriptor)?;
        let unchecked = is_old.then(|| (path, descriptor.digest.clone()));
        Ok(Layer { unchecked, ..Layer::of_image(blob, diff_id) })
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
