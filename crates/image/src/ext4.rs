//! A tree of files becomes an ext4 filesystem in a sparse file.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::build::ImageError;
use crate::cache::{CacheError, Staging};
use crate::debian::{PACKAGES, Tree, namespace_shell, shared_dir};
use crate::recipe::Recipe;
use crate::tool::{Tool, ToolError};

/// Named one by one, so that the host's mke2fs.conf cannot choose a feature the guest's kernel does not know.
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,\
                        large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

/// Unpacks the tar archive on standard input and makes the filesystem of it. Device nodes cannot be made in a user
/// namespace and are not needed: the agent mounts a devtmpfs.
const FROM_TAR: &str = "mkdir tree && chmod 755 tree && tar -C tree --numeric-owner --exclude='./dev/*' -xpf - && mke2fs \"$@\" -d tree image";

/// Writes the tree to a new file of the recipe's disk size in the staging area.
pub(crate) fn format(tree: &Tree, recipe: &Recipe, staging: &Staging<'_>) -> Result<PathBuf, ImageError> {
    let dir = shared_dir(staging.path())?;
    let image = dir.join("image");
    let made = File::create_new(&image).and_then(|file| file.set_len(recipe.disk_bytes));
    made.map_err(CacheError::new("create", &image))?;
    let mut tool = match tree {
        Tree::Directory(root) => {
            let mut tool = Tool::find("mke2fs", PACKAGES)?;
            tool.command().args(options(&recipe.digest())).arg("-d").arg(root).arg(&image);
            tool
        }
        Tree::Tar(archive) => {
            permit(&image, 0o666)?;
            let archive = File::open(archive).map_err(CacheError::new("open", archive))?;
            let mut tool = namespace_shell(&dir, FROM_TAR)?;
            tool.command().args(options(&recipe.digest())).stdin(archive);
            tool
        }
    };
    tool.command().env("SOURCE_DATE_EPOCH", "0");
    match tool.holding(staging.lock())?.run(&mut |_| ()) {
        Err(ToolError::Failed { said, .. }) if said.contains("Could not allocate") => {
            Err(ImageError::TooSmall { recipe: recipe.name.clone(), bytes: recipe.disk_bytes })
        }
        done => done.map_err(ImageError::from),
    }?;
    permit(&image, 0o644)?;
    Ok(image)
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

fn permit(path: &Path, mode: u32) -> Result<(), CacheError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(CacheError::new("change the mode of", path))
}

#[cfg(test)]
mod tests;
