//! From a recipe to an image: find it in the cache, or make it there.

use std::path::PathBuf;

use types::progress::Progress;
use types::{Dirs, RecipeName};

use crate::cache::{Bucket, CacheError, Staging};
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
    /// Of the recipe it was made from.
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

/// `make` gets an empty staging area and returns the finished file in it.
fn find_or_make(
    recipe: &Recipe,
    dirs: &Dirs,
    progress: &dyn Progress,
    make: impl FnOnce(&Recipe, &Staging<'_>, &dyn Progress) -> Result<PathBuf, ImageError>,
) -> Result<Image, ImageError> {
    let digest = recipe.digest();
    let key = format!("{}-{}", recipe.name, &digest[..DIGEST_IN_NAME]);
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
    let made = make(recipe, &staging, progress).and_then(|staged| Ok(staging.publish(&staged, &name)?));
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
        ImageError::Cache(err) => err.source.kind() == std::io::ErrorKind::StorageFull,
        ImageError::TooSmall { .. } | ImageError::Tool(_) => false,
    }
}

#[cfg(test)]
mod tests;
