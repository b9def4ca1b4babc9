//! An image that was found: how it is run, and its layers.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::digest::{Digest, DigestError};
use crate::directory::{DirectoryError, Files};
use crate::flatten::{Limits, Meaning};
use crate::layout::Layout;
use crate::manifest::{ConfigFile, Descriptor, Document, MAX_DOCUMENT, MAX_LAYERS, Platform, RunFile};
use crate::registry::RegistryError;
use crate::source::Source;
use crate::tar::TarError;

/// An index that leads to an index that leads to an index is none.
const MAX_INDEXES: usize = 3;
/// What all layers may have: as much as they may unpack to.
const MAX_BYTES: u64 = Limits::UNPACKED_BYTES;
/// Changes whenever the same image would give different bytes.
const BUILDER: &[u8] = b"forkd image writer 2";

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An archive of an image is no archive.
    #[error("{} is not an archive; one that is compressed has to be uncompressed first", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// Why.
        source: TarError,
    },
    /// A directory could not be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A document that is none.
    #[error("{what} is not what it should be: {reason}")]
    Malformed {
        /// Which.
        what: String,
        /// Why.
        reason: String,
    },
    /// No image has the name.
    #[error("there is no image called `{name}` in {}", at.display())]
    NoSuchImage {
        /// The name.
        name: String,
        /// Where.
        at: PathBuf,
    },
    /// Several images, and no name.
    #[error("there are several images, or none, in {}; append a colon and the name of one", at.display())]
    Ambiguous {
        /// Where.
        at: PathBuf,
    },
    /// None for our guests.
    #[error("the image is not for {wanted}; it is for: {found}")]
    Platform {
        /// What was wanted.
        wanted: Platform,
        /// What there is.
        found: String,
    },
    /// More layers than we take, or others than the configuration names.
    #[error("the image has {layers} layers and names {named} (at most {MAX_LAYERS})")]
    Layers {
        /// How many there are.
        layers: usize,
        /// How many the configuration names.
        named: usize,
    },
    /// More to fetch than an image may be once it is uncompressed.
    #[error("the layers of the image have {bytes} bytes, and all that is in an image may have {MAX_BYTES}")]
    TooLarge {
        /// How many there are.
        bytes: u64,
    },
    /// A blob is longer or shorter than it should be.
    #[error("blob {digest} should have {expected} bytes and has {found}")]
    Size {
        /// Which.
        digest: Digest,
        /// What was said.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// A blob has other contents than its name says.
    #[error("blob {expected} is damaged: its contents are {found}")]
    Digest {
        /// Its name.
        expected: Digest,
        /// What is there.
        found: Digest,
    },
    /// A digest that is none.
    #[error(transparent)]
    DigestText(#[from] DigestError),
    /// A registry did not give it to us.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl ImageError {
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }
}

/// How an image's programs are to be run. What is empty says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunConfig {
    /// `NAME=value`.
    pub env: Vec<String>,
    /// The program.
    pub entrypoint: Vec<String>,
    /// Its arguments, or the program where there is no entrypoint.
    pub cmd: Vec<String>,
    /// Where.
    pub working_dir: String,
    /// As whom.
    pub user: String,
}

impl From<RunFile> for RunConfig {
    fn from(file: RunFile) -> Self {
        Self {
            env: file.env.unwrap_or_default(),
            entrypoint: file.entrypoint.unwrap_or_default(),
            cmd: file.cmd.unwrap_or_default(),
            working_dir: file.working_dir.unwrap_or_default(),
            user: file.user.unwrap_or_default(),
        }
    }
}

/// A layer, and what it is once it is uncompressed.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) blob: Blob,
    pub(crate) diff_id: Option<Digest>,
    /// What it is as it is, packed; for files of others, which may be changed at any time.
    pub(crate) packed: Option<Digest>,
    pub(crate) meaning: Meaning,
    /// Its name in the cache, and what it has to be: it lay there and was not looked at.
    pub(crate) unchecked: Option<(PathBuf, Digest)>,
}

impl Layer {
    /// One that an image's configuration names.
    pub(crate) const fn of_image(blob: Blob, diff_id: Digest) -> Self {
        Self { blob, diff_id: Some(diff_id), packed: None, meaning: Meaning::Image, unchecked: None }
    }

    /// A file that is an archive; and what is in the file.
    fn of_archive(path: &Path, meaning: Meaning) -> Result<(Self, Digest), ImageError> {
        let blob = Blob::open(path).map_err(ImageError::read(path))?;
        let id = Digest::of_stream(&mut blob.reader()).map_err(ImageError::read(path))?;
        Ok((Self { blob, diff_id: None, packed: Some(id.clone()), meaning, unchecked: None }, id))
    }
}

/// Where the blobs of an image come from. What is handed out has the length and the digest that it should have.
pub(crate) trait Blobs {
    fn blob(&self, descriptor: &Descriptor) -> Result<Blob, ImageError>;

    /// A layer; one that says so was not compared with its digest yet.
    fn layer(&self, descriptor: &Descriptor, diff_id: Digest) -> Result<Layer, ImageError> {
        Ok(Layer::of_image(self.blob(descriptor)?, diff_id))
    }

    /// An index or a manifest; registries keep them apart from other blobs.
    fn manifest(&self, descriptor: &Descriptor) -> Result<Vec<u8>, ImageError> {
        text(self, descriptor)
    }
}

/// An image of layers.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) run: RunConfig,
    pub(crate) layers: Vec<Layer>,
}

impl Found {
    pub(crate) fn new(config: ConfigFile, layers: Vec<Layer>, platform: &Platform) -> Result<Self, ImageError> {
        if !platform.fits(&config.platform) {
            return Err(ImageError::Platform { wanted: platform.clone(), found: config.platform.to_string() });
        }
        Ok(Self { run: config.config.map(Into::into).unwrap_or_default(), layers })
    }

    /// From what names the image to all that it consists of.
    pub(crate) fn resolve(blobs: &dyn Blobs, root: &Descriptor, platform: &Platform) -> Result<Self, ImageError> {
        let mut descriptor = root.clone();
        for _ in 0..MAX_INDEXES {
            let what = descriptor.digest.to_string();
            match document(&blobs.manifest(&descriptor)?, &what)? {
                Document::Index(index) => {
                    let chosen = index.choose(platform).cloned();
                    descriptor = chosen
                        .ok_or_else(|| ImageError::Platform { wanted: platform.clone(), found: index.platforms() })?;
                }
                Document::Manifest(manifest) => {
                    let what = manifest.config.digest.to_string();
                    let config: ConfigFile = document(&text(blobs, &manifest.config)?, &what)?;
                    let (layers, named) = (manifest.layers.len(), config.rootfs.diff_ids.len());
                    if layers > MAX_LAYERS || layers != named {
                        return Err(ImageError::Layers { layers, named });
                    }
                    let bytes = manifest.layers.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.size));
                    if bytes > MAX_BYTES {
                        return Err(ImageError::TooLarge { bytes });
                    }
                    let diff_ids = config.rootfs.diff_ids.clone();
                    let layers =
                        manifest.layers.iter().zip(diff_ids).map(|(layer, diff_id)| blobs.layer(layer, diff_id));
                    return Self::new(config, layers.collect::<Result<_, ImageError>>()?, platform);
                }
            }
        }
        Err(ImageError::Malformed { what: root.digest.to_string(), reason: "indexes that lead to indexes".into() })
    }
}

/// A blob that is a document.
fn text<B: Blobs + ?Sized>(blobs: &B, descriptor: &Descriptor) -> Result<Vec<u8>, ImageError> {
    let what = || descriptor.digest.to_string();
    if descriptor.size > MAX_DOCUMENT {
        let reason = format!("longer than {MAX_DOCUMENT} bytes");
        return Err(ImageError::Malformed { what: what(), reason });
    }
    let text = blobs.blob(descriptor)?.text(MAX_DOCUMENT);
    let text = text.map_err(|source| ImageError::Read { path: what().into(), source })?;
    Ok(text.unwrap_or_default())
}

pub(crate) fn document<T: serde::de::DeserializeOwned>(text: &[u8], what: &str) -> Result<T, ImageError> {
    serde_json::from_slice(text).map_err(|error| ImageError::Malformed { what: what.into(), reason: error.to_string() })
}

/// An image that is here, all of it.
#[derive(Debug)]
pub struct Image {
    pub(crate) run: RunConfig,
    /// Files of a directory, which lie below all layers.
    pub(crate) files: Option<Files>,
    /// From the lowest to the highest.
    pub(crate) layers: Vec<Layer>,
    id: Digest,
}

impl Image {
    /// Finds an image on this computer.
    ///
    /// # Errors
    /// When there is none, it is not for the platform, or not what its digests say.
    pub fn open(source: &Source, platform: &Platform) -> Result<Self, ImageError> {
        match source {
            Source::Layout(place) => Ok(Self::of(Layout::directory(&place.path).open(place, platform)?)),
            Source::Archive(place) => Ok(Self::of(Layout::archive(&place.path)?.open(place, platform)?)),
            Source::Docker(place) => Ok(Self::of(Layout::archive(&place.path)?.open_docker(place, platform)?)),
            Source::Directory(path) => {
                let files = Files::open(path)?;
                let contents = files.digest();
                let run = RunConfig::default();
                Ok(Self { id: id(&run, &[&contents]), run, files: Some(files), layers: Vec::new() })
            }
            Source::Tar(path) => {
                let (layer, contents) = Layer::of_archive(path, Meaning::Archive)?;
                let run = RunConfig::default();
                Ok(Self { id: id(&run, &[&contents]), run, files: None, layers: vec![layer] })
            }
            Source::Registry(reference) => {
                let reason = "it is in a registry, and was to be fetched first".into();
                Err(ImageError::Malformed { what: reference.to_string(), reason })
            }
        }
    }

    pub(crate) fn of(found: Found) -> Self {
        let Found { run, layers } = found;
        let ids: Vec<_> = layers.iter().filter_map(|layer| layer.diff_id.as_ref()).collect();
        Self { id: id(&run, &ids), run, files: None, layers }
    }

    /// The same with the files of an archive added to it. Directories that are there keep their modes, and their owners
    /// unless the archive has others than root for them.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn with_layer(mut self, path: &Path) -> Result<Self, ImageError> {
        let (layer, contents) = Layer::of_archive(path, Meaning::Addition)?;
        self.id = id(&self.run, &[&self.id, &contents]);
        self.layers.push(layer);
        Ok(self)
    }

    /// The same, with programs that are run in another way.
    #[must_use]
    pub fn with_run(mut self, run: RunConfig) -> Self {
        self.id = id(&run, &[&self.id]);
        self.run = run;
        self
    }

    /// How its programs are to be run.
    #[must_use]
    pub const fn run(&self) -> &RunConfig {
        &self.run
    }

    /// What its disk depends on: its contents, how it is run, and how it is written.
    #[must_use]
    pub const fn id(&self) -> &Digest {
        &self.id
    }
}

/// What a disk depends on.
fn id(run: &RunConfig, contents: &[&Digest]) -> Digest {
    let run_text = serde_json::to_vec(run).unwrap_or_default();
    let mut text = BUILDER.to_vec();
    text.extend(Digest::of(&run_text).to_string().bytes());
    contents.iter().for_each(|digest| text.extend(digest.to_string().bytes()));
    Digest::of(&text)
}
