//! What a VM boots from: found, or built and fetched where it is missing.

use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use engine::Program;
use image::{Initramfs, Purpose, Recipe, build_image, guest_kernel};
use types::progress::Progress;
use types::{Dirs, GuestMemorySize, VcpuCount};

use crate::run::GuestArgs;

/// The recipe of a VM when nobody says.
const DEFAULT_RECIPE: &str = "debian";

/// The three files, how large the VM is, and what its recipe says besides.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) image: PathBuf,
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    pub(crate) vcpus: VcpuCount,
    pub(crate) memory: GuestMemorySize,
    /// None for an image without a recipe.
    pub(crate) recipe: Option<Recipe>,
}

impl Parts {
    pub(crate) fn find(guest: &GuestArgs, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<Self> {
        let named = guest.recipe.as_deref().or_else(|| guest.image.is_none().then_some(DEFAULT_RECIPE));
        let recipe = named.map(Recipe::find).transpose()?;
        let (kernel, initramfs) = boot_files(guest, dirs, progress)?;
        let image = match (&guest.image, &recipe) {
            // Opened only to say so early when it cannot be.
            (Some(image), _) => {
                File::open(image).map(|_| image.clone()).with_context(|| format!("cannot open {}", image.display()))?
            }
            (None, recipe) => {
                let recipe = recipe.as_ref().expect("without an image there is a recipe");
                build_image(recipe, dirs, progress)?.path
            }
        };
        let size = recipe.as_ref().map(|recipe| recipe.size.clone()).unwrap_or_default();
        let vcpus = guest.vcpus.or(size.vcpus).unwrap_or(VcpuCount::DEFAULT);
        let memory = guest.memory.or(size.memory).unwrap_or(GuestMemorySize::DEFAULT);
        Ok(Self { image, kernel, initramfs, vcpus, memory, recipe })
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
