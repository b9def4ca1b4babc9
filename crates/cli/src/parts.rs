//! What a VM boots from: found, or built and fetched where it is missing.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use api::{CreateSnapshot, WarmUp};
use engine::Program;
use engine::place::{Place, place};
use image::{Initramfs, Purpose, Recipe, ShellLine, Warm, build_image, guest_kernel};
use types::progress::Progress;
use types::{Dirs, GuestMemorySize, VcpuCount};

use crate::remote::Remote;
use crate::run::GuestArgs;

/// The recipe of a VM when nobody says.
pub(crate) const DEFAULT_RECIPE: &str = "debian";

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

    /// A request for a snapshot, with these for its recipe: brought to where VMs run, and named as they are called there.
    pub(crate) fn fill(
        &self,
        asked: CreateSnapshot,
        dirs: &Dirs,
        progress: &dyn Progress,
    ) -> anyhow::Result<CreateSnapshot> {
        let [kernel, initramfs, rootfs] = match place(dirs)? {
            Place::Local => {
                let [kernel, initramfs, image] = [&self.kernel, &self.initramfs, &self.image].map(|path| text(path));
                [kernel?, initramfs?, image?]
            }
            Place::Machine { .. } => {
                let inside = Remote::start(dirs, progress)?.push_parts(self, progress)?;
                [inside.kernel, inside.initramfs, inside.image]
            }
        };
        Ok(CreateSnapshot {
            recipe: None,
            kernel: Some(kernel),
            initramfs: Some(initramfs),
            rootfs: Some(rootfs),
            vcpus: asked.vcpus.or_else(|| Some(self.vcpus.get().into())),
            memory_mib: asked.memory_mib.or_else(|| Some(self.memory.mib())),
            warm: asked.warm.or_else(|| self.recipe.as_ref().map(|recipe| said(&recipe.warm))),
            built_from: self.recipe.as_ref().map(|recipe| recipe.name.to_string()),
            ..asked
        })
    }
}

/// What a recipe says, for a daemon that need not have read it.
fn said(warm: &Warm) -> WarmUp {
    let line = |line: &Option<ShellLine>| line.as_ref().map(ToString::to_string);
    let interpreter = warm.interpreter.as_ref();
    let modules = interpreter.map(|warm| warm.modules.as_slice().iter().map(ToString::to_string).collect());
    WarmUp {
        interpreter: interpreter.map(|warm| warm.program.to_string()),
        modules: modules.unwrap_or_default(),
        command: line(&warm.command),
        ready: line(&warm.ready),
    }
}

/// A path as everybody on this computer can say it.
fn text(path: &Path) -> anyhow::Result<String> {
    let path = std::path::absolute(path)?;
    path.to_str().map(String::from).with_context(|| format!("{} is not text", path.display()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_recipe_says_is_passed_on() {
        let said = said(&Recipe::find("python-numpy").unwrap().warm);
        assert_eq!((said.interpreter.as_deref(), &said.modules[..]), (Some("python3"), &["numpy".to_owned()][..]));
    }
}
