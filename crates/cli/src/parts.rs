//! What a VM boots from: found, or built and fetched where it is missing.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use api::{BuildImage, BuildSteps, BuiltImage, CreateSnapshot, EgressPolicy, ReadyCheck, ReadyWay, WarmUp};
use client::{Client, path};
use engine::place::{Place, place};
use engine::{Egress, Program};
use image::{Initramfs, Purpose, Ready, Recipe, ShellLine, Warm, build_image, guest_kernel};
use types::progress::Progress;
use types::{Dirs, GuestMemorySize, VcpuCount};

use crate::daemon::Own;
use crate::from_image::DiskArgs;
use crate::progress;
use crate::remote::{InsideParts, Remote};
use crate::run::{GuestArgs, Image};

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
    /// What completes the image, where VMs run.
    steps: Option<BuildSteps>,
}

/// An image that was built of a recipe, its steps not run yet.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    pub(crate) recipe: Recipe,
    pub(crate) image: PathBuf,
}

impl Parts {
    pub(crate) fn find(guest: &GuestArgs, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<Self> {
        match guest.image() {
            None => {
                let recipe = Recipe::find(guest.recipe.as_deref().unwrap_or(DEFAULT_RECIPE))?;
                let image = build_image(&recipe, dirs, progress)?.path;
                Self::of(Built { recipe, image }, guest, dirs, progress)
            }
            Some(Image::Disk(image)) => {
                ensure!(
                    guest.extra.is_empty(),
                    "--extra installs into a container image, and {} is a disk",
                    image.display()
                );
                // Opened only to say so early when it cannot be.
                File::open(&image).with_context(|| format!("cannot open {}", image.display()))?;
                let recipe = guest.recipe.as_deref().map(Recipe::find).transpose()?;
                Self::with(image, recipe, None, guest, dirs, progress)
            }
            Some(Image::Source(source)) => {
                ensure!(guest.recipe.is_none(), "--recipe says what the disk is made of, and so does --image {source}");
                let (recipe, _) = DiskArgs::with(guest.extra.clone()).recipe(&source)?;
                let image = build_image(&recipe, dirs, progress)?.path;
                Self::of(Built { recipe, image }, guest, dirs, progress)
            }
        }
    }

    /// Those of an image that was built.
    pub(crate) fn of(built: Built, guest: &GuestArgs, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<Self> {
        let Built { recipe, image } = built;
        let steps = steps(&recipe);
        Self::with(image, Some(recipe), steps, guest, dirs, progress)
    }

    fn with(
        image: PathBuf,
        recipe: Option<Recipe>,
        steps: Option<BuildSteps>,
        guest: &GuestArgs,
        dirs: &Dirs,
        progress: &dyn Progress,
    ) -> anyhow::Result<Self> {
        let (kernel, initramfs) = boot_files(guest, dirs, progress)?;
        let size = recipe.as_ref().map(|recipe| recipe.size.clone()).unwrap_or_default();
        let vcpus = guest.vcpus.or(size.vcpus).unwrap_or(VcpuCount::DEFAULT);
        let memory = guest.memory.or(size.memory).unwrap_or(GuestMemorySize::DEFAULT);
        Ok(Self { image, kernel, initramfs, vcpus, memory, recipe, steps })
    }

    /// A request for a snapshot, with these for its recipe: brought to where VMs run, and named as they are called there.
    pub(crate) fn fill(
        &self,
        asked: CreateSnapshot,
        dirs: &Dirs,
        progress: &dyn Progress,
    ) -> anyhow::Result<CreateSnapshot> {
        let [kernel, initramfs, rootfs] = self.where_vms_run(dirs, progress)?;
        let recipe = self.recipe.as_ref();
        let ports = recipe.map(|recipe| recipe.network.ports.iter().map(|port| port.get()).collect());
        Ok(CreateSnapshot {
            recipe: None,
            kernel: Some(kernel),
            initramfs: Some(initramfs),
            rootfs: Some(rootfs),
            vcpus: asked.vcpus.or_else(|| Some(self.vcpus.get().into())),
            memory_mib: asked.memory_mib.or_else(|| Some(self.memory.mib())),
            build: self.steps.clone(),
            warm: recipe.map(|recipe| said(&recipe.warm)),
            ports: ports.unwrap_or_default(),
            egress: asked.egress.or_else(|| recipe.and_then(|recipe| policy(recipe.network.egress.as_ref()))),
            built_from: recipe.map(|recipe| recipe.name.to_string()),
            ..asked
        })
    }

    /// The image with its steps run, as it is called where VMs run. Nothing is left to do where there are none.
    pub(crate) fn completed(&self, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<Completed> {
        let at = place(dirs)?;
        if self.steps.is_none() {
            return Ok(Completed::Here(self.image.clone()));
        }
        let paths = self.where_vms_run(dirs, progress)?;
        let built = self.complete(&Own::new(dirs)?.client()?, paths, progress)?;
        Ok(match at {
            Place::Local => Completed::Here(built.path.into()),
            Place::Machine { .. } => Completed::Inside(built.path),
        })
    }

    /// The same for parts that are in the emulated host.
    pub(crate) fn complete_inside(
        &self,
        inside: InsideParts,
        dirs: &Dirs,
        progress: &dyn Progress,
    ) -> anyhow::Result<InsideParts> {
        if self.steps.is_none() {
            return Ok(inside);
        }
        let paths = [inside.kernel.clone(), inside.initramfs.clone(), inside.image.clone()];
        let built = self.complete(&Own::new(dirs)?.client()?, paths, progress)?;
        Ok(InsideParts { image: built.path, ..inside })
    }

    fn complete(
        &self,
        client: &Client,
        [kernel, initramfs, rootfs]: [String; 3],
        progress: &dyn Progress,
    ) -> anyhow::Result<BuiltImage> {
        let asked = BuildImage {
            recipe: None,
            kernel: Some(kernel),
            initramfs: Some(initramfs),
            rootfs: Some(rootfs),
            build: self.steps.clone(),
            built_from: self.recipe.as_ref().map(|recipe| recipe.name.to_string()),
            vcpus: Some(self.vcpus.get().into()),
            memory_mib: Some(self.memory.mib()),
            boot_timeout_secs: None,
        };
        Ok(client.work(&path(&["images"], &[]), &asked, progress::watch(progress))?)
    }

    /// Kernel, initramfs and image, as whoever runs VMs can open them.
    fn where_vms_run(&self, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<[String; 3]> {
        Ok(match place(dirs)? {
            Place::Local => {
                let [kernel, initramfs, image] = [&self.kernel, &self.initramfs, &self.image].map(|path| text(path));
                [kernel?, initramfs?, image?]
            }
            Place::Machine { .. } => {
                let egress = self.recipe.as_ref().and_then(|recipe| recipe.build.egress.as_ref());
                if egress.is_some_and(|egress| *egress != Egress::None) {
                    eprintln!(
                        "forkd: build.egress opens nothing here: the emulated host reaches nothing outside of itself"
                    );
                }
                let inside = Remote::start(dirs, progress)?.push_parts(self, progress)?;
                [inside.kernel, inside.initramfs, inside.image]
            }
        })
    }
}

/// Where an image is that is all done.
#[derive(Debug)]
pub(crate) enum Completed {
    /// On this computer.
    Here(PathBuf),
    /// In the emulated host.
    Inside(String),
}

/// What a recipe has run in a VM, for a daemon that need not have read it.
fn steps(recipe: &Recipe) -> Option<BuildSteps> {
    let run = recipe.steps();
    let secs = recipe.build.timeout.map(|limit| limit.duration().as_secs());
    (!run.is_empty()).then(|| BuildSteps {
        run,
        egress: policy(recipe.build.egress.as_ref()),
        timeout_secs: secs.and_then(|secs| u32::try_from(secs).ok()),
    })
}

fn policy(egress: Option<&Egress>) -> Option<EgressPolicy> {
    egress.map(|egress| EgressPolicy::Text(egress.to_string()))
}

/// What a recipe says of its warm-up, in the same way.
fn said(warm: &Warm) -> WarmUp {
    let line = |line: &Option<ShellLine>| line.as_ref().map(ToString::to_string);
    let interpreter = warm.interpreter.as_ref();
    let modules = interpreter.map(|warm| warm.modules.as_slice().iter().map(ToString::to_string).collect());
    let secs = warm.timeout.map(|limit| limit.duration().as_secs());
    WarmUp {
        interpreter: interpreter.map(|warm| warm.program.to_string()),
        modules: modules.unwrap_or_default(),
        command: line(&warm.command),
        start: warm.start.as_ref().map(start),
        ready: warm.ready.as_ref().map(ready),
        timeout_secs: secs.and_then(|secs| u32::try_from(secs).ok()),
    }
}

fn start(start: &image::Start) -> api::Start {
    match start {
        image::Start::Line(line) => api::Start::Line(line.to_string()),
        image::Start::Program(_) => api::Start::Program(start.argv()),
    }
}

fn ready(check: &Ready) -> ReadyCheck {
    let way = match check {
        Ready::Command(line) => return ReadyCheck::Command(line.to_string()),
        Ready::Tcp(port) => ReadyWay { tcp: Some(port.get()), ..ReadyWay::default() },
        Ready::Http(port, path) => {
            ReadyWay { http: Some(port.get()), path: Some(path.to_string()), ..ReadyWay::default() }
        }
        Ready::Line(text) => ReadyWay { line: Some(text.to_string()), ..ReadyWay::default() },
    };
    ReadyCheck::Way(way)
}

/// A path as everybody on this computer can say it.
fn text(path: &Path) -> anyhow::Result<String> {
    let path = std::path::absolute(path)?;
    path.to_str().map(String::from).with_context(|| format!("{} is not text", path.display()))
}

fn boot_files(guest: &GuestArgs, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<(PathBuf, PathBuf)> {
    let named = guest.kernel();
    if let (Some(kernel), Some(initramfs)) = (&named, &guest.initramfs) {
        return Ok((kernel.clone(), initramfs.clone()));
    }
    let kernel = guest_kernel(named.as_deref(), dirs, progress)?;
    let agent = Program::Agent.find()?;
    let initramfs = Initramfs { agent: &agent, kernel: &kernel, purpose: Purpose::Guest }.cached(dirs, progress)?;
    Ok((kernel.image, initramfs))
}

#[cfg(test)]
mod tests {
    use image::Beside;

    use super::*;

    #[test]
    fn what_a_recipe_says_is_passed_on() {
        let numpy = Recipe::find("python-numpy").unwrap();
        let said = said(&numpy.warm);
        assert_eq!((said.interpreter.as_deref(), &said.modules[..]), (Some("python3"), &["numpy".to_owned()][..]));
        assert_eq!(steps(&numpy), None);
    }

    #[test]
    fn steps_and_checks_are_passed_on_as_they_are() {
        let text = "description = \"d\"\n[base]\ndebian = \"bookworm\"\n[build]\nrun = [\"a\", \"b\"]\negress = \"all\"\n\
                    timeout_secs = 5\n[warm]\nstart = \"serve\"\nready = { http = 80, path = \"/x\" }\ntimeout_secs = 7\n";
        let recipe = Recipe::parse("r".parse().unwrap(), text, Beside::Directory("/".into())).unwrap();
        let steps = steps(&recipe).unwrap();
        assert_eq!((steps.run, steps.timeout_secs), (vec!["a".into(), "b".into()], Some(5)));
        assert_eq!(steps.egress, Some(EgressPolicy::Text("all".into())));
        let said = said(&recipe.warm);
        assert_eq!((said.start, said.timeout_secs), (Some(api::Start::Line("serve".into())), Some(7)));
        let way = ReadyWay { http: Some(80), path: Some("/x".into()), ..ReadyWay::default() };
        assert_eq!(said.ready, Some(ReadyCheck::Way(way)));
    }
}
