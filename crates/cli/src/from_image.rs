//! `forkd from-image`: a container image becomes a snapshot. And `forkd parent build`: it becomes a disk.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use api::WarmUp;
use clap::{Args, Subcommand};
use image::{ShellLine, build_container_image};
use oci::{DiskSize, Image, Limits, Platform, RunConfig, Settings, Source};
use types::progress::Progress;
use types::{Dirs, GuestMemorySize, Tag, VcpuCount};

use crate::run::GuestArgs;
use crate::snapshot::{HowArgs, SnapshotArgs};
use crate::{output, progress, seconds};

/// What a guest can write to its disk when nobody says how large that is; it costs nothing until it is used.
const FREE: u64 = 2 << 30;

const SOURCES: &str = "\
SOURCE is one of:
  python:3.12-slim, localhost:5000/mine@sha256:...    in a registry; logins, mirrors and certificates are those of
                                                      docker and podman
  oci:DIR[:NAME], oci-archive:FILE[:NAME]             an OCI layout, as a directory or an archive
  docker-archive:FILE[:NAME]                          what `docker save` writes
  dir:PATH, tar:FILE                                  the files themselves
";

const EXAMPLES: &str = "\
Examples:
  forkd from-image python:3.12-slim --tag py --warm 'python3 -c \"import json\"'
  forkd from-image docker-archive:app.tar --tag app --start --ready 'wget -qO- localhost:8080'
  forkd from-image dir:./rootfs --tag mine --memory 1G --vcpus 2

No container engine is needed, and nothing of the image runs on this computer. In the snapshot, commands run as the
image says: its ENV, WORKDIR and USER hold where a command says nothing else, and `forkd exec ID` without a command
runs its ENTRYPOINT and CMD.";

/// Makes a snapshot of a container image, without a container engine
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
    /// Virtual CPUs [default: 1]
    #[arg(long, value_name = "N")]
    vcpus: Option<VcpuCount>,
    /// Memory, such as 512M or 4G [default: 512M]
    #[arg(long, value_name = "SIZE")]
    memory: Option<GuestMemorySize>,
    /// A kernel (bzImage or vmlinux) to use instead of the one found or fetched
    #[arg(long, value_name = "FILE", env = "FORKD_KERNEL")]
    kernel: Option<PathBuf>,
    /// How long it may take until its agent answers
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds::parse)]
    boot_timeout: Duration,
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
    /// Tried until it succeeds: only then is the snapshot taken
    #[arg(long, value_name = "COMMAND")]
    ready: Option<ShellLine>,
}

impl WarmArgs {
    fn said(&self, run: &RunConfig) -> anyhow::Result<WarmUp> {
        let command = if self.start { Some(started(run)?) } else { self.warm.as_ref().map(ToString::to_string) };
        Ok(WarmUp { command, ready: self.ready.as_ref().map(ToString::to_string), ..WarmUp::default() })
    }
}

/// Which image, and on what disk.
#[derive(Debug, Args)]
struct DiskArgs {
    /// Which of the images for several platforms, such as linux/amd64 [default: what guests run here]
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<Platform>,
    /// The size of its disk in MiB [default: what it needs, and 2 GiB more]
    #[arg(long, value_name = "MIB")]
    size_mib: Option<u32>,
}

impl DiskArgs {
    fn size(&self) -> DiskSize {
        self.size_mib.map_or(DiskSize::Free(FREE), |mib| DiskSize::Bytes(u64::from(mib) << 20))
    }

    fn open(&self, source: &Source, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<Image> {
        let platform = self.platform.clone().unwrap_or_default();
        let opened = match source {
            Source::Registry(reference) => {
                Image::pull(reference, &platform, &dirs.cache, &Settings::from_env(), progress)
            }
            source => Image::open(source, &platform),
        };
        opened.with_context(|| format!("there is no image {source} for us"))
    }
}

pub(crate) fn from_image(args: &FromImageArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    let progress = progress::reporter(args.how.quiet);
    let source: Source = args.source.parse()?;
    let image = args.disk.open(&source, &dirs, &*progress)?;
    let warm = args.warm_up.said(image.run())?;
    let disk = build_container_image(&image, &source.slug().parse()?, args.disk.size(), &dirs, &*progress)?;
    let guest = GuestArgs {
        recipe: None,
        image: Some(disk.path),
        vcpus: args.vcpus,
        memory: args.memory,
        kernel: args.kernel.clone(),
        initramfs: None,
        append: None,
        boot_timeout: args.boot_timeout,
    };
    SnapshotArgs::of_image(args.tag.clone(), args.how.clone(), guest, warm).run()
}

/// A line for the image's shell that starts its program and leaves it running.
fn started(run: &RunConfig) -> anyhow::Result<String> {
    let words = run.entrypoint.iter().chain(&run.cmd).map(String::as_str);
    let line = shlex::try_join(words).context("the image's ENTRYPOINT and CMD cannot be run by a shell")?;
    if line.is_empty() {
        bail!("the image has neither ENTRYPOINT nor CMD to start; --warm runs a command");
    }
    let line: ShellLine = format!("{line} </dev/null >/tmp/forkd-start.log 2>&1 &").parse()?;
    Ok(line.to_string())
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

/// Writes a container image as a disk (ext4), for `forkd snapshot --image`
#[derive(Debug, Args)]
#[command(after_long_help = SOURCES)]
struct BuildArgs {
    /// Where the image is; --help lists the ways to say it
    source: String,
    /// Where to write it [default: the image's name and .ext4]
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
    let source: Source = args.source.parse()?;
    let image = args.disk.open(&source, &dirs, &*progress)?;
    let path = args.output.clone().unwrap_or_else(|| format!("{}.ext4", source.slug()).into());
    write(&image, &path, args.disk.size(), &*progress).with_context(|| format!("cannot write {}", path.display()))?;
    output::line(&path.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Whole or not at all.
fn write(image: &Image, path: &Path, size: DiskSize, progress: &dyn Progress) -> anyhow::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Readable by whoever the user's files are.
    let staged = tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(dir)?;
    let file: &File = staged.as_file();
    image.write(file, size, Limits::default(), progress)?;
    file.sync_all()?;
    staged.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_own_program_is_started_by_a_shell() {
        let run = |entrypoint: &[&str], cmd: &[&str]| {
            let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
            started(&RunConfig { entrypoint: words(entrypoint), cmd: words(cmd), ..RunConfig::default() })
        };
        let line = run(&["/bin/serve it"], &["--name", "a'b"]).unwrap();
        assert_eq!(line, r#"'/bin/serve it' --name "a'b" </dev/null >/tmp/forkd-start.log 2>&1 &"#);
        run(&[], &[]).unwrap_err();
        run(&["a\nb"], &[]).unwrap_err();
    }

    #[test]
    fn a_directory_becomes_a_disk_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("f"), "text").unwrap();
        let image = Image::open(&format!("dir:{}", tree.display()).parse().unwrap(), &Platform::default()).unwrap();
        let path = dir.path().join("disk.ext4");
        write(&image, &path, DiskSize::Bytes(16 << 20), &types::progress::Silent).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 16 << 20);
        write(&image, &path, DiskSize::Bytes(1 << 20), &types::progress::Silent).unwrap_err();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "something was left behind");
    }
}
