//! From the initramfs to the root file system, without a new process.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::mounts::{self, KERNEL};
use super::{InitError, step};
use crate::console::say;

/// What `statfs` says of a file system in memory.
const IN_MEMORY: [i64; 2] = [0x8584_58f6, 0x0102_1994];
/// Where the new root is mounted before it takes its place.
const NEW_ROOT: &str = "/root-new";
/// An initramfs is flat; deeper is not ours.
const MAX_DEPTH: usize = 16;

/// Everything here will be deleted, so it had better be an initramfs.
pub(crate) fn check_initramfs() -> Result<(), InitError> {
    let found = rustix::fs::statfs("/").map_err(step("look at /"))?;
    if IN_MEMORY.contains(&found.f_type) { Ok(()) } else { Err(InitError::NotInitramfs) }
}

/// Makes the file system on `device` the root.
pub(crate) fn switch(device: &Path) -> Result<(), InitError> {
    let new_root = Path::new(NEW_ROOT);
    mounts::ext4(device, new_root)?;
    for target in KERNEL {
        let place = new_root.join(target.trim_start_matches('/'));
        fs::create_dir_all(&place).map_err(step("make a directory in the root"))?;
        rustix::mount::mount_move(target, &place).map_err(step("move a mount to the root"))?;
    }
    // Its memory would be lost to the machine for good. A file that stays costs memory and nothing else.
    if let Err(error) = fs::metadata("/").and_then(|root| free(Path::new("/"), root.dev(), 0)) {
        say(format_args!("the initramfs stays in memory: {error}"));
    }
    rustix::process::chdir(new_root).map_err(step("enter the root"))?;
    rustix::mount::mount_move(".", "/").map_err(step("move the root into its place"))?;
    rustix::process::chroot(".").map_err(step("change the root"))?;
    rustix::process::chdir("/").map_err(step("enter the root"))
}

/// Deletes everything below that is on this device, which leaves out what is mounted.
fn free(directory: &Path, device: u64, depth: usize) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let found = path.symlink_metadata()?;
        if found.dev() != device || depth > MAX_DEPTH {
            continue;
        }
        if found.is_dir() {
            free(&path, device, depth + 1)?;
            // Stays where something is mounted.
            drop(fs::remove_dir(&path));
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
