//! From a recipe or a container image to a disk: find it in the cache, or make it there.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use oci::DiskSize;
use types::progress::Progress;
use types::{Dirs, RecipeName};

use crate::cache::{Bucket, CacheError, Staging};
use crate::digest::Hasher;
use crate::recipe::Recipe;
use crate::tool::ToolError;
use crate::{debian, ext4};

/// As much of a digest as a file name needs to be unique among one recipe's versions.
const DIGEST_IN_NAME: usize = 16;
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
    #[error("the packages of recipe `{recipe}` do not fit on its disk of {bytes} bytes; raise disk.size")]
    TooSmall {
        /// The recipe.
        recipe: RecipeName,
        /// Its disk's size.
        bytes: u64,
    },
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
    /// Of the recipe or the container image it was made from.
    pub digest: String,
}

/// The image of a recipe, built if it is not in the cache yet.
///
/// Blocks for as long as the package manager needs; if somebody else is building the same, until they are done. The
/// programs it runs end when the calling thread does.
///
/// # Errors
/// When a program that is needed is missing or fails, or the disk is full.
pub fn build_image(recipe: &Recipe, dirs: &Dirs, progress: &dyn Progress) -> Result<Image, ImageError> {
    find_or_make(recipe, dirs, progress, make)
}

/// The disk of a container image, written if it is not in the cache yet; `name` is a part of its file's name.
///
/// # Errors
/// When the image is not what its digests say, is larger than the disk, or the host's disk is full.
pub fn build_container_image(
    image: &oci::Image,
    name: &RecipeName,
    size: DiskSize,
    dirs: &Dirs,
    progress: &dyn Progress,
) -> Result<Image, ImageError> {
    let size_text = format!("{size:?}");
    let digest = Hasher::default().part(image.id().hex().as_bytes()).part(size_text.as_bytes()).hex();
    cached(name, digest, dirs, progress, |staging| {
        let path = staging.path().join("image");
        let file = File::create_new(&path).map_err(CacheError::new("create", &path))?;
        image.write(&file, size, oci::Limits::default(), progress)?;
        Ok(path)
    })
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
    Recipe::parse(name, MACHINE).expect("a test parses the machine's recipe")
}

fn find_or_make(
    recipe: &Recipe,
    dirs: &Dirs,
    progress: &dyn Progress,
    make: impl FnOnce(&Recipe, &Staging<'_>, &dyn Progress) -> Result<PathBuf, ImageError>,
) -> Result<Image, ImageError> {
    cached(&recipe.name, recipe.digest(), dirs, progress, |staging| make(recipe, staging, progress))
}

/// `make` gets an empty staging area and returns the finished file in it.
fn cached(
    name: &RecipeName,
    digest: String,
    dirs: &Dirs,
    progress: &dyn Progress,
    make: impl FnOnce(&Staging<'_>) -> Result<PathBuf, ImageError>,
) -> Result<Image, ImageError> {
    let key = format!("{name}-{}", &digest[..DIGEST_IN_NAME]);
    let name = format!("{key}.ext4");
    let bucket = Bucket::open(&dirs.cache, "images-v1")?;
    let path = bucket.path(&name);
    if path.is_file() {
        return Ok(Image { path, digest });
    }
    let turn = bucket.lock(&key, progress)?;
    if path.is_file() {
        return Ok(Image { path, digest });
    }
    let staging = turn.stage()?;
    let area = staging.path().to_owned();
    let made = make(&staging).and_then(|staged| Ok(staging.publish(&staged, &name)?));
    let path = made.map_err(|err| if is_disk_full(&err) { ImageError::DiskFull { path: area } } else { err })?;
    Ok(Image { path, digest })
}

fn make(recipe: &Recipe, staging: &Staging<'_>, progress: &dyn Progress) -> Result<PathBuf, ImageError> {
    let stage = progress.stage(&format!("Installing Debian {} for {}", recipe.suite, recipe.name), None);
    let tree = debian::bootstrap(recipe, staging, &*stage)?;
    drop(stage);
    let _stage = progress.stage("Writing the filesystem", None);
    ext4::format(&tree, recipe, staging)
}

fn is_disk_full(err: &ImageError) -> bool {
    match err {
        ImageError::DiskFull { .. } | ImageError::Tool(ToolError::DiskFull { .. }) => true,
        ImageError::Cache(err) => err.source.kind() == io::ErrorKind::StorageFull,
        ImageError::Container(oci::WriteError::Write { source }) => source.kind() == io::ErrorKind::StorageFull,
        ImageError::TooSmall { .. } | ImageError::Tool(_) | ImageError::Container(_) => false,
    }
}

#[cfg(test)]
mod tests;
