//! A tree of files becomes an ext4 filesystem in a sparse file.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::build::ImageError;
use crate::cache::{CacheError, Staging};
use crate::debian::PACKAGES;
use crate::recipe::Recipe;
use crate::tool::{Tool, ToolError};

/// Named one by one, so that the host's mke2fs.conf cannot choose a feature the guest's kernel does not know.
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,\
                        large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

/// Writes the tree to a new file of the recipe's disk size in the staging area.
pub(crate) fn format(tree: &Path, recipe: &Recipe, staging: &Staging<'_>) -> Result<PathBuf, ImageError> {
    let image = staging.path().join("image");
    let made = File::create_new(&image).and_then(|file| file.set_len(recipe.disk_bytes));
    made.map_err(CacheError::new("create", &image))?;
    let mut tool = Tool::contained("mke2fs", PACKAGES)?.holding(staging.lock())?;
    tool.command().args(options(&recipe.digest())).arg("-d").arg(tree).arg(&image);
    match tool.run(&mut |_| ()) {
        Ok(()) => Ok(image),
        Err(ToolError::Failed { said, .. }) if said.contains("Could not allocate") => {
            Err(ImageError::TooSmall { recipe: recipe.name.clone(), bytes: recipe.disk_bytes })
        }
        Err(err) => Err(err.into()),
    }
}

/// A small root that many guests share:
/// - a small journal, because what a guest writes to it is a copy of its own;
/// - nothing left for the kernel to initialise later, which every guest would write again;
/// - no blocks reserved for root: everything in there is root's;
/// - identifiers made from the recipe, so that the same files give the same filesystem.
fn options(digest: &str) -> Vec<String> {
    let uuid = uuid(digest);
    let extended = format!("lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0,hash_seed={uuid}");
    let fixed = ["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-i", "16384", "-m", "0", "-J", "size=8"];
    let chosen = ["-L", "forkd-root", "-O", FEATURES, "-U", &uuid, "-E", &extended];
    fixed.into_iter().chain(chosen).map(str::to_owned).collect()
}

/// 122 bits of the digest in the form of a random UUID.
fn uuid(digest: &str) -> String {
    format!("{}-{}-4{}-8{}-{}", &digest[..8], &digest[8..12], &digest[12..15], &digest[15..18], &digest[18..30])
}

#[cfg(test)]
mod tests;
