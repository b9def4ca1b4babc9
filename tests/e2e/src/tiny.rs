//! The smallest image that a guest boots from: a shell and what that needs, of the Debian image. A snapshot over it travels
//! in seconds also where everything is emulated.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use types::Dirs;

const SIZE: &str = "32M";
/// What is taken from the image, and where it is put.
const FILES: [(&str, &str); 9] = [
    ("/usr/bin/dash", "bin/sh"),
    ("/usr/bin/cat", "bin/cat"),
    ("/usr/bin/chmod", "bin/chmod"),
    ("/usr/bin/head", "bin/head"),
    ("/usr/bin/setsid", "bin/setsid"),
    ("/usr/bin/sleep", "bin/sleep"),
    ("/usr/bin/sync", "bin/sync"),
    ("/usr/lib/x86_64-linux-gnu/libc.so.6", "lib/x86_64-linux-gnu/libc.so.6"),
    ("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2"),
];

/// The image; made when it is wanted for the first time of this Debian image.
pub(crate) fn image(debian: &Path, dirs: &Dirs) -> Result<PathBuf> {
    let (all, debian_name) = (dirs.cache.join("e2e"), debian.file_name().context("an image has a name")?);
    // Named after what it is made of.
    let made_of = Sha256::digest(format!("{debian_name:?} {FILES:?} {SIZE}"));
    let name: String = made_of[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let image = all.join(format!("tiny-{name}.ext4"));
    if image.exists() {
        return Ok(image);
    }
    fs::create_dir_all(&all)?;
    let work = tempfile::tempdir_in(&all)?;
    let (tree, made) = (work.path().join("tree"), work.path().join("image"));
    for directory in ["etc", "root", "tmp"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    for (from, to) in FILES {
        let to = tree.join(to);
        fs::create_dir_all(to.parent().context("a directory")?)?;
        run(Command::new("debugfs").arg("-R").arg(format!("dump -p {from} {}", to.display())).arg(debian))?;
        // It does not say so when there is no such file.
        ensure!(to.metadata().is_ok_and(|meta| meta.len() > 0), "{} has no {from}", debian.display());
    }
    run(Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(&tree).arg(&made).arg(SIZE))?;
    fs::rename(&made, &image)?;
    Ok(image)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}; it is in e2fsprogs"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
