//! What a VM boots from: found, or built and fetched where it is missing.

use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use engine::Program;
use image::{Initramfs, Purpose, Recipe, build_image, guest_kernel};
use types::Dirs;
use types::progress::Progress;

use crate::run::GuestArgs;

/// The three files.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) image: PathBuf,
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
}

impl Parts {
    pub(crate) fn find(guest: &GuestArgs, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<Self> {
        let (kernel, initramfs) = boot_files(guest, dirs, progress)?;
        let image = match &guest.image {
            // Opened only to say so early when it cannot be.
            Some(image) => {
                File::open(image).map(|_| image.clone()).with_context(|| format!("cannot open {}", image.display()))?
            }
            None => build_image(&Recipe::find(&guest.recipe)?, dirs, progress)?.path,
        };
        Ok(Self { image, kernel, initramfs })
    }
}

fn boot_files(guest: &GuestArgs, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<(PathBuf, PathBuf)> {
    if let (Some(kernel), Some(initramfs)) = (&guest.kernel, &guest.initramfs) {
        return Ok((kernel.clone(), initramfs.clone()));
    }
    let kernel = guest_kernel(guest.kernel.as_deref(), dirs, progress)?;
    let agent = Program::Agent.find()?;
    let initramfs = Initramfs { agent: &agent, kernel: &kernel, purpose: Purpose::Guest }.cached(dirs, progress)?;
    Ok((kernel.image, initramfs))
}
