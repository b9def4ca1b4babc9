//! `forkd from-image`: a container image, or a recipe, becomes a snapshot. And `forkd parent build`: it becomes a disk.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use image::{Argument, Bottom, PackageName, Ready, Recipe, ShellLine, Start, UrlPath, build_image};
use layer::{Base, Stack};
use oci::{DiskSize, Platform, RunConfig, Source};
use types::progress::Progress;
use types::{Dirs, GuestMemorySize, Tag, VcpuCount};

use crate::daemon::DaemonArgs;
use crate::output::Shown;
use crate::parts::{Built, Completed, Parts};
use crate::published::BuildFlags;
use crate::remote::Remote;
use crate::run::GuestArgs;
use crate::snapshot::{HowArgs, SnapshotArgs};
use crate::{output, progress, seconds};

const SOURCES: &str = "\
SOURCE is one of:
  python:3.12-slim, localhost:5000/mine@sha256:...    in a registry; logins, mirrors and certificates are those of
                                                      docker and podman
  oci:DIR[:NAME], oci-archive:FILE[:NAME]             an OCI layout, as a directory or an archive
  docker-archive:FILE[:NAME]                          what `docker save` writes
  dir:PATH, tar:FILE                                  the files themselves
  some/where/recipe.toml                              a recipe, which is any of these and more
";

const EXAMPLES: &str = "\
Examples:
  forkd from-image python:3.12-slim --tag py --warm 'python3 -c \"import json\"'
  forkd from-image docker-archive:app.tar --tag app --start --ready http:8080/health
  forkd from-image dir:./rootfs --tag mine --memory 1G --vcpus 2
  forkd from-image debian:12-slim --tag tools --extra jq --extra git
  forkd from-image ./my/recipe.toml --tag mine

No container engine is needed, and nothing of the image runs on this computer: what --extra adds is downloaded here and
installed in a VM. In the snapshot, commands run as the
image says: its ENV, WORKDIR and USER hold where a command says nothing else, and `forkd exec ID` without a command
runs its ENTRYPOINT and CMD.";

/// Makes a snapshot of a container image or a recipe, without a container engine
#[derive(Debug, Args)]
#[command(after_long_help = format!("{SOURCES}\n{EXAMPLES}"))]
pub(crate) struct FromImageArgs {
    /// Where the image is; --help lists the ways to say it
    source: String,
    /// What the snapshot shall be called
    #[arg(long, value_name = "TAG")]
    tag: Tag,
    #[command(flatten)]
    how: HowArgs,
    #[command(flatten)]
    disk: DiskArgs,
    #[command(flatten)]
    warm_up: WarmArgs,
    /// Virtual CPUs [default: what the recipe says, or 1]
    #[arg(long, value_name = "N")]
    vcpus: Option<VcpuCount>,
    /// Memory, such as 512M or 4G [default: what the recipe says, or 512M]
    #[arg(long, alias = "mem-size-mib", value_name = "SIZE")]
    memory: Option<GuestMemorySize>,
    /// A kernel (bzImage or vmlinux) to use instead of the one found or fetched [env: FORKD_KERNEL]
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// How long it may take until its agent answers
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds::parse)]
    boot_timeout: Duration,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: BuildFlags,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// What is done before the snapshot is taken.
#[derive(Debug, Args)]
struct WarmArgs {
    /// Run once before the snapshot is taken, by the image's shell; what it leaves running is part of the snapshot
    #[arg(long, value_name = "COMMAND", conflicts_with = "start")]
    warm: Option<ShellLine>,
    /// Starts the image's own ENTRYPOINT and CMD, which then run in the snapshot
    #[arg(long)]
    start: bool,
    /// What has to be so before the snapshot is taken: tcp:PORT, http:PORT or http:PORT/PATH, or else a command for the
    /// image's shell that is tried until it succeeds
    #[arg(long, value_name = "CHECK", value_parser = ready)]
    ready: Option<Ready>,
}

impl WarmArgs {
    /// What is said here comes instead of what the recipe says.
    fn apply(&self, recipe: &mut Recipe, run: &RunConfig) -> anyhow::Result<()> {
        if self.start {
            recipe.warm.start = Some(started(run)?);
        }
        if let Some(line) = &self.warm {
            recipe.warm.command = Some(line.clone());
        }
        if let Some(check) = &self.ready {
            recipe.warm.ready = Some(check.clone());
        }
        Ok(())
    }
}

/// Reads a check as the command line has it.
fn ready(text: &str) -> anyhow::Result<Ready> {
    let port = |text: &str| text.parse().with_context(|| format!("`{text}` is not a port"));
    Ok(match text.split_once(':') {
        Some(("tcp", number)) => Ready::Tcp(port(number)?),
        Some(("http", rest)) => {
            let (number, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            Ready::Http(port(number)?, if path.is_empty() { UrlPath::default() } else { path.parse()? })
        }
        _ => Ready::Command(text.parse()?),
    })
}

/// Which image, and on what disk.
#[derive(Debug, Default, Args)]
pub(crate) struct DiskArgs {
    /// A Debian package to install into an image that is made of Debian; repeatable
    #[arg(long, value_name = "PKG")]
    extra: Vec<PackageName>,
    /// Which of the images for several platforms, such as linux/amd64 [default: what guests run here]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<Platform>,
    /// The size of its disk in MiB [default: what the recipe says, or what it needs, and 2 GiB more]
    #[arg(long, value_name = "MIB")]
    size_mib: Option<u32>,
}

impl DiskArgs {
    /// One as large as it needs, with these packages besides.
    pub(crate) fn with(extra: Vec<PackageName>) -> Self {
        Self { extra, ..Self::default() }
    }

    /// What a source is, as a recipe; and a short word for it.
    pub(crate) fn recipe(&self, source: &str) -> anyhow::Result<(Recipe, String)> {
        let (mut recipe, word) = if source.ends_with(".toml") {
            // A name alone is one in this directory.
            let mut recipe = Recipe::find(Path::new(".").join(source).to_str().unwrap_or(source))?;
            match (&self.platform, &mut recipe.base.bottom) {
                (Some(wanted), Bottom::Image { platform, .. }) => platform.clone_from(wanted),
                (Some(_), Bottom::Debian(_)) => bail!("--platform is about images, and {source} is based on Debian"),
                (None, _) => {}
            }
            let word = recipe.name.to_string();
            (recipe, word)
        } else {
            let word = source.parse::<Source>()?.slug();
            let dir = std::env::current_dir().context("cannot tell where this is")?;
            let platform = self.platform.clone().unwrap_or_default();
            (Recipe::of_image(word.parse()?, source.parse()?, platform, &dir), word)
        };
        recipe.base.packages.extend(self.extra.iter().cloned());
        if let Some(mib) = self.size_mib {
            recipe.disk.0 = DiskSize::Bytes(u64::from(mib) << 20);
        }
        Ok((recipe, word))
    }
}

pub(crate) fn from_image(args: &FromImageArgs) -> anyhow::Result<ExitCode> {
    args.flags.tell(args.how.quiet);
    let dirs = Dirs::from_env()?;
    let progress = progress::reporter(args.how.quiet);
    let (mut recipe, _) = args.disk.recipe(&args.source)?;
    // Before anything is built for who cannot open it.
    args.daemon.opens_what_is_here(&args.source)?;
    let image = build_image(&recipe, &dirs, &*progress)?;
    args.warm_up.apply(&mut recipe, &image.run)?;
    drop(progress);
    let guest = GuestArgs {
        vcpus: args.vcpus,
        memory: args.memory,
        kernel: args.kernel.clone(),
        boot_timeout: args.boot_timeout,
        ..GuestArgs::plain()
    };
    let built = Built { recipe, image: image.path };
    let snapshot = SnapshotArgs::of_guest(args.tag.clone(), args.how.clone(), guest, args.daemon.clone());
    snapshot.built(built).run(Shown::of(args.json))
}

/// The image's own program. It may be all that is in the image, so no shell is asked for it.
fn started(run: &RunConfig) -> anyhow::Result<Start> {
    if run.entrypoint.is_empty() && run.cmd.is_empty() {
        bail!("the image has neither ENTRYPOINT nor CMD to start; --warm runs a command");
    }
    let words = run.entrypoint.iter().chain(&run.cmd).map(|word| word.parse());
    let words: Vec<Argument> = words.collect::<Result<_, _>>().context("the image's ENTRYPOINT and CMD")?;
    Ok(Start::Program(words.try_into()?))
}

/// Makes what snapshots are made of
#[derive(Debug, Args)]
pub(crate) struct ParentArgs {
    #[command(subcommand)]
    verb: ParentVerb,
}

#[derive(Debug, Subcommand)]
enum ParentVerb {
    Build(BuildArgs),
}

/// Writes a container image or a recipe as a disk (ext4), for `forkd snapshot --image`
#[derive(Debug, Args)]
#[command(after_long_help = SOURCES)]
struct BuildArgs {
    /// Where the image is; --help lists the ways to say it
    source: String,
    /// Where to write it [default: ./<name>.ext4]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    disk: DiskArgs,
    /// Shows no progress
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn parent(args: &ParentArgs) -> anyhow::Result<ExitCode> {
    let ParentVerb::Build(args) = &args.verb;
    let dirs = Dirs::from_env()?;
    let progress = progress::reporter(args.quiet);
    let (recipe, word) = args.disk.recipe(&args.source)?;
    let path = args.output.clone().unwrap_or_else(|| format!("{word}.ext4").into());
    let image = build_image(&recipe, &dirs, &*progress)?.path;
    let completed = if recipe.steps().is_empty() {
        Completed::Here(image)
    } else {
        let guest = GuestArgs::of_recipe(recipe.name.to_string());
        Parts::of(Built { recipe, image }, &guest, &dirs, &*progress)?.completed(&dirs, &*progress)?
    };
    write(&completed, &path, &dirs, &*progress).with_context(|| format!("cannot write {}", path.display()))?;
    output::line(&path.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Whole or not at all.
fn write(from: &Completed, path: &Path, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Readable by whoever the user's files are.
    let staged = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(dir)?;
    let _stage = progress.stage("Copying the disk", None);
    match from {
        Completed::Here(image) => copy(image, staged.as_file())?,
        Completed::Inside(image) => Remote::start(dirs, progress)?.fetch(image, staged.as_file())?,
    }
    staged.as_file().sync_all()?;
    staged.persist(path)?;
    Ok(())
}

/// With its holes, and without moving a byte where the file system can.
fn copy(image: &Path, to: &File) -> anyhow::Result<()> {
    let from = File::open(image).with_context(|| format!("cannot open {}", image.display()))?;
    Ok(layer::flatten(&Stack::open(Base::Image(from), Vec::new())?, to)?)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    #[test]
    fn the_images_own_program_is_run_as_it_is() {
        let run = |entrypoint: &[&str], cmd: &[&str]| {
            let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
            started(&RunConfig { entrypoint: words(entrypoint), cmd: words(cmd), ..RunConfig::default() })
        };
        assert_eq!(run(&["/bin/serve it"], &["--name", "a'\nb"]).unwrap().argv(), ["/bin/serve it", "--name", "a'\nb"]);
        assert_eq!(run(&[], &["sh"]).unwrap().argv(), ["sh"]);
        run(&[], &[]).unwrap_err();
        run(&["a\0b"], &[]).unwrap_err();
    }

    #[test]
    fn a_check_needs_no_program_of_the_image() {
        assert_eq!(ready("tcp:80").unwrap(), Ready::Tcp(NonZeroU16::new(80).unwrap()));
        let http = |path: &str| Ready::Http(NonZeroU16::new(8080).unwrap(), path.parse().unwrap());
        assert_eq!((ready("http:8080").unwrap(), ready("http:8080/a?b").unwrap()), (http("/"), http("/a?b")));
        assert!(matches!(ready("wget http://localhost:80").unwrap(), Ready::Command(_)));
        for bad in ["tcp:0", "tcp:", "http:99999/", "http://localhost:80", ""] {
            assert!(ready(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_source_is_an_image_or_a_recipe() {
        let disk = DiskArgs { extra: vec!["jq".parse().unwrap()], size_mib: Some(100), ..DiskArgs::default() };
        let (recipe, word) = disk.recipe("docker.io/library/python:3.12-slim").unwrap();
        assert_eq!((word.as_str(), recipe.disk.0), ("python-3-12-slim", DiskSize::Bytes(100 << 20)));
        assert!(recipe.base.has_extra());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        std::fs::write(&path, "description = \"d\"\n[base]\ndebian = \"bookworm\"\n").unwrap();
        let (recipe, word) = disk.recipe(path.to_str().unwrap()).unwrap();
        assert_eq!((word.as_str(), recipe.base.packages.len()), ("mine", 1));
        assert!(recipe.steps().is_empty(), "Debian's own tools install it");
        let arm: Platform = "linux/arm64".parse().unwrap();
        let disk = DiskArgs { platform: Some(arm.clone()), ..DiskArgs::default() };
        assert!(disk.recipe(path.to_str().unwrap()).unwrap_err().to_string().contains("based on Debian"));
        std::fs::write(&path, "description = \"d\"\n[base]\nimage = \"x\"\nplatform = \"linux/s390x\"\n").unwrap();
        let (recipe, _) = disk.recipe(path.to_str().unwrap()).unwrap();
        assert!(matches!(&recipe.base.bottom, Bottom::Image { platform, .. } if *platform == arm));
        disk.recipe("no such image").unwrap_err();
    }

    #[test]
    fn a_disk_is_copied_as_a_whole_with_its_holes() {
        use std::os::unix::fs::{FileExt as _, MetadataExt as _};
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let file = File::create(&image).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(b"text", 32 << 20).unwrap();
        let path = dir.path().join("disk.ext4");
        let dirs = Dirs::under(dir.path());
        write(&Completed::Here(image.clone()), &path, &dirs, &types::progress::Silent).unwrap();
        let copy = File::open(&path).unwrap();
        let mut found = [0; 4];
        copy.read_exact_at(&mut found, 32 << 20).unwrap();
        let meta = copy.metadata().unwrap();
        assert_eq!((&found, meta.len()), (b"text", 64 << 20));
        assert!(meta.blocks() * 512 < 1 << 20, "not sparse");
        write(&Completed::Here(dir.path().join("none")), &path, &dirs, &types::progress::Silent).unwrap_err();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "something was left behind");
    }
}
