//! From a recipe to a disk: find it in the cache, or make it there.
//!
//! ```text
//! Debian packages, or a container image     the bottom
//! packages of PyPI and npm                  unpacked
//! packages for an image                     as files; installed by a step in a VM
//! files from beside the recipe              over all of it
//! how commands are run                      /etc/forkd/image.json
//! ```
//!
//! All of it are layers, which become one tree and one file system. Nothing of it is executed here but Debian's own
//! package tools, contained. What a recipe wants to run is run in a VM by others ([`Recipe::steps`]), over this disk.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use oci::{Limits, PlanError, Platform, RunConfig, Settings, Source};
use types::progress::Progress;
use types::{Dirs, RecipeName};

use crate::cache::{Bucket, CacheError, Staging};
use crate::digest::Hasher;
use crate::extra::{self, ExtraError};
use crate::layer::{Layer, LayerError};
use crate::recipe::{Beside, Bottom, Recipe, Suite};
use crate::tool::ToolError;
use crate::{debian, indexes};

/// Changes whenever the same recipe would give a different image.
const BUILDER: &str = "forkd image builder 3";
/// Changes whenever the same files beside a recipe would be copied to a different result.
const COPIER: &str = "forkd copies 2";
/// As much of a digest as a file name needs to be unique among one recipe's versions.
const DIGEST_IN_NAME: usize = 16;
const BUCKET: &str = "images-v1";
const MACHINE: &str = include_str!("../machine.toml");

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The disk of the host is full.
    #[error("the disk is full: there was no room to build an image in {}", path.display())]
    DiskFull {
        /// Where the image was being built.
        path: PathBuf,
    },
    /// The disk of the recipe is.
    #[error("what recipe `{recipe}` consists of needs {needed} bytes, and its disk has {bytes}; raise disk.size")]
    TooSmall {
        /// The recipe.
        recipe: RecipeName,
        /// Its disk's size.
        bytes: u64,
        /// What would be enough.
        needed: u64,
    },
    /// Packages of PyPI, and no Python.
    #[error("packages of PyPI are named, and there is no python3 in the image; add it to base.packages")]
    NoPython,
    /// Files that cannot be copied.
    #[error(transparent)]
    Copy(#[from] LayerError),
    /// What was copied has changed meanwhile.
    #[error("the files beside recipe `{recipe}` changed while they were read; try again")]
    Changed {
        /// The recipe.
        recipe: RecipeName,
    },
    /// Packages that cannot be installed into an image.
    #[error(transparent)]
    Extra(#[from] ExtraError),
    /// There is no such container image.
    #[error("there is no image {name} for us")]
    Open {
        /// Its name.
        name: String,
        /// Why.
        source: oci::ImageError,
    },
    /// A layer of ours cannot be read.
    #[error(transparent)]
    Layer(oci::ImageError),
    /// A container image cannot be written as a disk.
    #[error(transparent)]
    Container(#[from] oci::WriteError),
    /// A program is missing or failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A file could not be read or written.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// A root filesystem (ext4, not partitioned). Shared by all who boot from it: never to be written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The file; sparse.
    pub path: PathBuf,
    /// Of all that it was made from.
    pub digest: String,
    /// How the programs of the container image below are to be run, and what the recipe says of it.
    pub run: RunConfig,
}

/// The image of a recipe before any of its steps was run, built if it is not in the cache yet.
///
/// Blocks for as long as the package manager needs; if somebody else is building the same, until they are done. The
/// programs it runs end when the calling thread does.
///
/// # Errors
/// When a program that is needed is missing or fails, an image is not what its digests say, or the disk is full.
pub fn build_image(recipe: &Recipe, dirs: &Dirs, progress: &dyn Progress) -> Result<Image, ImageError> {
    let found = find(recipe, dirs, progress)?;
    let run = run_config(recipe, &found);
    let (_, copied) = copied(recipe, io::sink())?;
    let digest = digest(recipe, &found, &run, &copied);
    let path = cached(&recipe.name, &digest, dirs, progress, |staging| {
        let making = Making { recipe, copied: &copied, staging, dirs, progress };
        making.disk(sound(found, recipe, dirs, progress)?, run.clone())
    })?;
    Ok(Image { path, digest, run })
}

/// The root filesystem of the emulated host.
///
/// # Errors
/// As [`build_image`].
pub fn build_machine_root(dirs: &Dirs, progress: &dyn Progress) -> Result<Image, ImageError> {
    build_image(&machine_recipe(), dirs, progress)
}

fn machine_recipe() -> Recipe {
    let name = "machine".parse().expect("`machine` is a name");
    Recipe::parse(name, MACHINE, Beside::Directory("/".into())).expect("a test parses the machine's recipe")
}

/// What lies at the bottom of a disk.
enum Found<'a> {
    Debian(&'a Suite),
    Image(Box<oci::Image>),
}

/// A container image has to be here before it is known whether its disk is: what it is called by its contents says so.
fn find<'a>(recipe: &'a Recipe, dirs: &Dirs, progress: &dyn Progress) -> Result<Found<'a>, ImageError> {
    let (name, platform) = match &recipe.base.bottom {
        Bottom::Debian(suite) => return Ok(Found::Debian(suite)),
        Bottom::Image { name, platform } => (name, platform),
    };
    let source = name.source(recipe.beside.directory());
    let opened = match &source {
        Source::Registry(reference) => {
            oci::Image::pull(reference, platform, &dirs.cache, &Settings::from_env(), progress)
        }
        source => oci::Image::open(source, platform),
    };
    let opened = opened.map_err(|error| ImageError::Open { name: source.to_string(), source: error })?;
    Ok(Found::Image(Box::new(opened)))
}

/// Layers that were pulled long ago may have been damaged since; those are fetched anew.
fn sound<'a>(
    found: Found<'a>,
    recipe: &'a Recipe,
    dirs: &Dirs,
    progress: &dyn Progress,
) -> Result<Found<'a>, ImageError> {
    let Found::Image(image) = &found else { return Ok(found) };
    let opened = |source| ImageError::Open { name: recipe.name.to_string(), source };
    if image.drop_damaged(progress).map_err(opened)? { find(recipe, dirs, progress) } else { Ok(found) }
}

/// What the image says of how its programs are run, and over it what the recipe says.
fn run_config(recipe: &Recipe, found: &Found<'_>) -> RunConfig {
    let mut run = match found {
        Found::Debian(_) => RunConfig::default(),
        Found::Image(image) => image.run().clone(),
    };
    let exec = &recipe.exec;
    let is_said = |line: &String| {
        let name = line.split('=').next().unwrap_or_default();
        exec.env.keys().any(|said| said.as_str() == name)
    };
    run.env.retain(|line| !is_said(line));
    run.env.extend(exec.env.iter().map(|(name, value)| format!("{name}={value}")));
    if let Some(user) = &exec.user {
        run.user = user.to_string();
    }
    if let Some(dir) = &exec.workdir {
        run.working_dir = dir.to_string();
    }
    run
}

/// `make` gets an empty staging area and returns the finished file in it.
pub(crate) fn cached<E: From<CacheError>>(
    name: &RecipeName,
    digest: &str,
    dirs: &Dirs,
    progress: &dyn Progress,
    make: impl FnOnce(&Staging<'_>) -> Result<PathBuf, E>,
) -> Result<PathBuf, E> {
    let key = format!("{name}-{}", &digest[..DIGEST_IN_NAME]);
    Bucket::open(&dirs.cache, BUCKET)?.find_or_make(&key, "ext4", progress, make)
}

/// What the image depends on, as SHA-256 in hex: the recipe's content, whatever the order of its packages, the contents of
/// what it copies and of the image it is based on, and the builder's version. Not the name, the description, nor what
/// happens in a VM.
fn digest(recipe: &Recipe, found: &Found<'_>, run: &RunConfig, copied: &str) -> String {
    let base = &recipe.base;
    let hash = Hasher::default().part(BUILDER.as_bytes());
    let hash = match found {
        Found::Debian(suite) => hash.part(b"debian").part(suite.as_str().as_bytes()),
        Found::Image(image) => hash.part(b"image").part(image.id().hex().as_bytes()),
    };
    let hash = base.packages.iter().fold(hash, |hash, package| hash.part(package.as_str().as_bytes()));
    let hash = base.pip.iter().fold(hash.part(b"pip"), |hash, package| hash.part(package.as_str().as_bytes()));
    let hash = base.npm.iter().fold(hash.part(b"npm"), |hash, package| hash.part(package.as_str().as_bytes()));
    let hash = hash.part(b"disk").part(format!("{:?}", recipe.disk.0).as_bytes());
    let hash = hash.part(b"run").part(format!("{run:?}").as_bytes());
    let hash = if recipe.copy.is_empty() { hash } else { hash.part(COPIER.as_bytes()) };
    hash.part(b"copy").part(copied.as_bytes()).hex()
}

/// Everything that is copied, as an archive; and what that is called by its contents.
fn copied<W: Write>(recipe: &Recipe, out: W) -> Result<(W, String), LayerError> {
    let mut layer = Layer::new(Hashing { out, hash: Hasher::default() });
    for step in &recipe.copy {
        recipe.beside.copy(step, &mut layer)?;
    }
    let Hashing { out, hash } = layer.finish()?;
    Ok((out, hash.hex()))
}

/// What is written is counted into a digest, too.
struct Hashing<W> {
    out: W,
    hash: Hasher,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.out.write(bytes)?;
        self.hash.more(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A disk that is being made.
struct Making<'a> {
    recipe: &'a Recipe,
    /// What is copied is called this.
    copied: &'a str,
    staging: &'a Staging<'a>,
    dirs: &'a Dirs,
    progress: &'a dyn Progress,
}

impl Making<'_> {
    fn disk(&self, found: Found<'_>, run: RunConfig) -> Result<PathBuf, ImageError> {
        let made = self.write(found, run);
        made.map_err(|error| {
            if is_disk_full(&error) { ImageError::DiskFull { path: self.staging.path().into() } } else { error }
        })
    }

    fn write(&self, found: Found<'_>, run: RunConfig) -> Result<PathBuf, ImageError> {
        let base = &self.recipe.base;
        let mut image = match found {
            Found::Image(image) => *image,
            Found::Debian(suite) => {
                let wanted = debian::Wanted { suite, packages: &base.packages };
                let layer = debian::layer(wanted, self.dirs, self.progress)?;
                oci::Image::open(&Source::Tar(layer), &Platform::default()).map_err(ImageError::Layer)?
            }
        };
        for layer in self.layers(&image)? {
            image = image.with_layer(&layer).map_err(ImageError::Layer)?;
        }
        let path = self.staging.path().join("image");
        let file = File::create_new(&path).map_err(CacheError::new("create", &path))?;
        let written = image.with_run(run).write(&file, self.recipe.disk.0, Limits::default(), self.progress);
        written.map_err(|error| match error {
            oci::WriteError::Plan(PlanError::TooSmall { bytes, needed }) => {
                ImageError::TooSmall { recipe: self.recipe.name.clone(), bytes, needed }
            }
            error => error.into(),
        })?;
        Ok(path)
    }

    /// What lies over the bottom.
    fn layers(&self, image: &oci::Image) -> Result<Vec<PathBuf>, ImageError> {
        let base = &self.recipe.base;
        let mut layers = Vec::new();
        let (has_extra, has_indexes) = (base.has_extra(), !base.pip.is_empty() || !base.npm.is_empty());
        if has_extra || has_indexes {
            let mut contents = image.contents(Limits::default())?;
            let mut debs = Vec::new();
            if has_extra {
                let extra = extra::fetch(&base.packages, &mut contents, self.staging, self.progress)?;
                layers.push(extra.layer);
                debs = extra.files;
            }
            layers.extend(indexes::layers(base, &mut contents, &debs, self.dirs, self.progress)?);
        }
        if !self.recipe.copy.is_empty() {
            let path = self.staging.path().join("copied.tar");
            let file = File::create_new(&path).map_err(CacheError::new("create", &path))?;
            if copied(self.recipe, file)?.1 != self.copied {
                return Err(ImageError::Changed { recipe: self.recipe.name.clone() });
            }
            layers.push(path);
        }
        Ok(layers)
    }
}

fn is_disk_full(err: &ImageError) -> bool {
    let is_full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
    match err {
        ImageError::DiskFull { .. } | ImageError::Tool(ToolError::DiskFull { .. }) => true,
        ImageError::Cache(err) => is_full(&err.source),
        ImageError::Container(oci::WriteError::Write { source }) | ImageError::Copy(LayerError::Write { source }) => {
            is_full(source)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
