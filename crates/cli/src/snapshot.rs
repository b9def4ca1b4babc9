//! `forkd snapshot`: a VM that was booted and warmed up once, to be forked many times.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use api::{CreateSnapshot, EgressPolicy, SnapshotInfo};
use clap::Args;
use client::path;
use engine::Egress;
use types::{Dirs, GuestMemorySize, Tag};

use crate::branch::BranchArgs;
use crate::daemon::{DaemonArgs, Files};
use crate::interrupts::Interrupts;
use crate::output::Shown;
use crate::parts::{Built, DEFAULT_RECIPE, Parts};
use crate::published::BuildFlags;
use crate::run::{GuestArgs, Image};
use crate::table::bytes;
use crate::{progress, seconds, stream};

const EXAMPLES: &str = "\
Examples:
  forkd snapshot --recipe python-numpy --tag pyagent
  forkd snapshot --recipe ./my/recipe.toml --tag mine --memory 2G --vcpus 2 --force
  forkd snapshot --kernel ./vmlinux --rootfs ./python.ext4 --tag py --mem-size-mib 1024
  forkd fork --tag pyagent -n 100

  forkd snapshot --from-sandbox 66f0 --tag thought       of a sandbox as it is now, which runs on

The recipe says what is warmed up: an interpreter and its modules, a command, and a check that tells when it is ready.
FORKD_KERNEL and FORKD_ROOTFS say --kernel and --rootfs (another name of --image) where the command line says neither a
disk nor a recipe.";

/// Boots a VM, warms it up and keeps it, for `forkd fork` to make many of
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SnapshotArgs {
    /// What it shall be called
    #[arg(long, value_name = "TAG", required_unless_present = "from_sandbox")]
    tag: Option<Tag>,
    #[command(flatten)]
    branch: BranchArgs,
    #[command(flatten)]
    how: HowArgs,
    /// What was built for it already.
    #[arg(skip)]
    built: Option<Built>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: BuildFlags,
    #[command(flatten)]
    daemon: DaemonArgs,
    // Its heading would go on to whatever comes after it.
    #[command(flatten)]
    guest: GuestArgs,
}

/// How it is taken.
#[derive(Clone, Debug, Args)]
pub(crate) struct HowArgs {
    /// Takes the place of a snapshot of that name
    #[arg(long)]
    force: bool,
    /// Gives it a network, and all its sandboxes; says where it may connect to while it warms up, and they may unless
    /// something else is said. See `forkd net --help`
    #[arg(long, value_name = "none|all|LIST")]
    egress: Option<Egress>,
    /// How long warming up may take [default: what the recipe says, or 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds::parse)]
    boot_wait_secs: Option<Duration>,
    /// Shows no progress and no notices
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

pub(crate) fn snapshot(args: SnapshotArgs) -> anyhow::Result<ExitCode> {
    args.flags.tell(args.how.quiet);
    let shown = Shown::of(args.json);
    if let Some(id) = &args.branch.from_sandbox {
        anyhow::ensure!(args.how.egress.is_none(), "a snapshot of a sandbox has the network that the sandbox has");
        return args.branch.run(id, args.tag.as_ref(), &args.daemon, shown);
    }
    let disk = std::env::var("FORKD_ROOTFS").ok().filter(|disk| !disk.is_empty());
    args.unless_said(disk).run(shown)
}

impl HowArgs {
    /// As usual; without a word if that is wanted.
    pub(crate) const fn quiet(quiet: bool) -> Self {
        Self { force: false, egress: None, boot_wait_secs: None, quiet }
    }
}

impl SnapshotArgs {
    /// Of what is found or built when it is made, by that daemon.
    pub(crate) fn of_guest(tag: Tag, how: HowArgs, guest: GuestArgs, daemon: DaemonArgs) -> Self {
        let (branch, flags) = (BranchArgs::default(), BuildFlags::default());
        Self { tag: Some(tag), branch, how, built: None, guest, json: false, flags, daemon }
    }

    /// Of what was built already.
    pub(crate) fn built(self, built: Built) -> Self {
        Self { built: Some(built), ..self }
    }

    /// With that disk, unless the command line says one or a recipe.
    fn unless_said(mut self, disk: Option<String>) -> Self {
        if self.guest.recipe.is_none() && self.guest.image.is_none() {
            self.guest.image = disk;
        }
        self
    }

    /// Boots, warms up and keeps it, and says so.
    pub(crate) fn run(&self, shown: Shown) -> anyhow::Result<ExitCode> {
        let interrupts = Interrupts::catch()?;
        let Some(made) = self.make(&interrupts)? else {
            let signal = interrupts.fatal().unwrap_or_default();
            eprintln!("forkd: interrupted by signal {signal}; nothing is left of the snapshot");
            return Ok(stream::killed_by(signal));
        };
        shown.line(&made, || summary(&made))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Boots, warms up and keeps it. `None` when a signal came first.
    pub(crate) fn make(&self, interrupts: &Interrupts) -> anyhow::Result<Option<SnapshotInfo>> {
        let tag = self.tag.as_ref().context("--tag is missing")?;
        let (client, files) = self.daemon.reach(self.how.quiet)?;
        let asked = if self.is_built_here(files) { self.of_parts(tag)? } else { self.of_recipe(tag)? };
        let quiet = self.how.quiet;
        let made = interrupts.unless(move || {
            let progress = progress::reporter(quiet);
            client.work::<SnapshotInfo>(&path(&["snapshots"], &[]), &asked, progress::watch(&*progress))
        })?;
        Ok(made.transpose()?)
    }

    /// Whether it is built here, at native speed, and not by the daemon, which knows recipes by their names only.
    fn is_built_here(&self, files: Files) -> bool {
        let is_ours = || self.built.is_some() || self.guest.image.is_some() || self.recipe_file().is_some();
        match files {
            Files::Own => true,
            Files::Here => is_ours(),
            Files::Elsewhere => false,
        }
    }

    /// The recipe, if it is a file and no name.
    fn recipe_file(&self) -> Option<&str> {
        self.guest.recipe.as_deref().filter(|recipe| recipe.contains('/') || recipe.ends_with(".toml"))
    }

    /// What does not depend on where the daemon is.
    fn asked(&self, tag: &Tag) -> CreateSnapshot {
        let path = |path: &PathBuf| path.display().to_string();
        CreateSnapshot {
            tag: tag.to_string(),
            kernel: self.guest.kernel().as_ref().map(path),
            rootfs: self.guest.image.clone(),
            initramfs: self.guest.initramfs.as_ref().map(path),
            append: self.guest.append.clone(),
            vcpus: self.guest.vcpus.map(|vcpus| vcpus.get().into()),
            memory_mib: self.guest.memory.map(GuestMemorySize::mib),
            boot_timeout_secs: Some(self.guest.boot_timeout.as_secs_f64()),
            warm_timeout_secs: self.how.boot_wait_secs.map(|limit| limit.as_secs_f64()),
            replace: self.how.force,
            egress: self.how.egress.as_ref().map(|egress| EgressPolicy::Text(egress.to_string())),
            ..CreateSnapshot::default()
        }
    }

    /// For a daemon elsewhere: it has recipes of its own, and files are its host's.
    fn of_recipe(&self, tag: &Tag) -> anyhow::Result<CreateSnapshot> {
        if let Some(path) = self.recipe_file() {
            bail!(
                "a daemon at an address knows recipes by their names only, and {path} is a file; without --daemon-url \
                   and FORKD_URL, this computer's own daemon makes a snapshot of it"
            );
        }
        if let Some(Image::Source(source)) = self.guest.image() {
            bail!(
                "a container image is built here, and a daemon elsewhere opens files of its own; without --daemon-url and \
                 FORKD_URL a snapshot of {source} is made here, which `forkd pack` and `forkd unpack` bring there"
            );
        }
        let default = || self.guest.image.is_none().then(|| DEFAULT_RECIPE.into());
        let recipe = self.guest.recipe.clone().or_else(default);
        Ok(CreateSnapshot { recipe, ..self.asked(tag) })
    }

    /// For this computer's own: everything is built here, by whoever may, at native speed, and brought to where it runs.
    fn of_parts(&self, tag: &Tag) -> anyhow::Result<CreateSnapshot> {
        let (dirs, progress) = (Dirs::from_env()?, progress::reporter(self.how.quiet));
        let parts = match &self.built {
            Some(built) => Parts::of(built.clone(), &self.guest, &dirs, &*progress),
            None => Parts::find(&self.guest, &dirs, &*progress),
        };
        parts?.fill(self.asked(tag), &dirs, &*progress)
    }
}

fn summary(made: &SnapshotInfo) -> String {
    let tag = &made.tag;
    let took = made.took.map_or([0.0; 3], |took| [took.boot_ms, took.warm_ms, took.write_ms]);
    let [boot, warm, write] = took.map(|ms| ms / 1000.0);
    format!(
        "✓ snapshot {tag}: booted in {boot:.1} s, warmed up in {warm:.1} s, written in {write:.1} s\n\
         ✓ {} of {} memory in use, {} written to disk; the snapshot occupies {}\n\
         fork it with: forkd fork --tag {tag} -n 10",
        bytes(made.memory_own_bytes.unwrap_or_default()),
        bytes(made.memory_bytes.unwrap_or_default()),
        bytes(made.disk_own_bytes.unwrap_or_default()),
        bytes(made.occupied_bytes.unwrap_or_default()),
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        snapshot: SnapshotArgs,
    }

    fn parse(words: &[&str]) -> SnapshotArgs {
        Line::try_parse_from(std::iter::once("snapshot").chain(words.iter().copied())).unwrap().snapshot
    }

    #[test]
    fn the_daemon_is_asked_for_the_same() {
        let args = parse(&["--tag", "pyagent", "--boot-wait-secs", "7.5", "--force", "--vcpus", "2", "--memory", "1G"]);
        let asked = args.of_recipe(&"pyagent".parse().unwrap()).unwrap();
        assert_eq!((asked.tag.as_str(), asked.recipe.as_deref()), ("pyagent", Some("debian")));
        assert_eq!((asked.vcpus, asked.memory_mib, asked.warm_timeout_secs), (Some(2), Some(1024), Some(7.5)));
        assert!(asked.replace && asked.boot_timeout_secs == Some(120.0) && asked.egress.is_none());
        let args = parse(&["--tag", "pyagent", "--egress", "a.org:80"]);
        let asked = args.of_recipe(&"pyagent".parse().unwrap()).unwrap();
        assert_eq!(asked.egress, Some(EgressPolicy::Text("a.org:80".into())));
    }

    #[test]
    fn a_file_is_no_recipe_of_a_daemon_elsewhere() {
        let args = parse(&["--tag", "mine", "--recipe", "./my/recipe.toml"]);
        let error = args.of_recipe(&"mine".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("FORKD_URL"), "{error}");
    }

    #[test]
    fn what_is_a_file_here_is_built_here() {
        let words = |words: &[&str]| parse(&[&["--tag", "t"], words].concat());
        assert!(!words(&["--recipe", "debian"]).is_built_here(Files::Here), "the daemon has it, too");
        for ours in [&["--recipe", "./r.toml"][..], &["--image", "python:3.12-slim"], &["--rootfs", "x.ext4"]] {
            assert!(words(ours).is_built_here(Files::Here) && !words(ours).is_built_here(Files::Elsewhere), "{ours:?}");
        }
        let container = words(&["--image", "python:3.12-slim"]).of_recipe(&"t".parse().unwrap()).unwrap_err();
        assert!(container.to_string().contains("forkd unpack"), "{container}");
        let asked = words(&["--rootfs", "/x.ext4", "--kernel", "/k"]).of_recipe(&"t".parse().unwrap()).unwrap();
        assert_eq!(
            (asked.rootfs.as_deref(), asked.kernel.as_deref(), asked.recipe),
            (Some("/x.ext4"), Some("/k"), None)
        );
    }

    #[test]
    fn the_environments_disk_is_taken_where_nothing_else_is_said() {
        let image =
            |words: &[&str]| parse(&[&["--tag", "t"], words].concat()).unless_said(Some("e.ext4".into())).guest.image;
        assert_eq!(image(&[]).as_deref(), Some("e.ext4"));
        assert_eq!((image(&["--recipe", "debian"]), image(&["--image", "x"]).as_deref()), (None, Some("x")));
    }
}
