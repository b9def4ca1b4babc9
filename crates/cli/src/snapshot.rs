//! `forkd snapshot`: a VM that was booted and warmed up once, to be forked many times.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use engine::place::{Place, place};
use engine::{BootError, BootSpec, Existing, SnapshotError, SnapshotSpec, Taken, WarmUp, snapshot as take};
use image::Recipe;
use serde::{Deserialize, Serialize};
use session::Stdio;
use types::progress::Progress;
use types::{Dirs, RecipeName, Tag};

use crate::branch::BranchArgs;
use crate::daemon::DaemonArgs;
use crate::interrupts::Interrupts;
use crate::parts::Parts;
use crate::remote::Remote;
use crate::run::GuestArgs;
use crate::table::bytes;
use crate::{output, progress, remote, seconds, stream};

const EXAMPLES: &str = "\
Examples:
  forkd snapshot --recipe python-numpy --tag pyagent
  forkd snapshot --recipe ./my/recipe.toml --tag mine --memory 2G --vcpus 2 --force
  forkd fork --tag pyagent -n 100

  forkd snapshot --from-sandbox 66f0 --tag thought       of a sandbox as it is now, which runs on

The recipe says what is warmed up: an interpreter and its modules, a command, and a check that tells when it is ready.";

/// Boots a VM, warms it up and keeps it, for `forkd fork` to make many of
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SnapshotArgs {
    /// What it shall be called
    #[arg(long, value_name = "TAG", required_unless_present = "from_sandbox")]
    tag: Option<Tag>,
    #[command(flatten)]
    branch: BranchArgs,
    /// Takes the place of a snapshot of that name
    #[arg(long)]
    force: bool,
    /// How long warming up may take
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds::parse)]
    boot_wait_secs: Duration,
    /// Shows no progress and no notices
    #[arg(long, short)]
    quiet: bool,
    /// What the recipe says, from a forkd that has read it
    #[arg(long, value_name = "JSON", hide = true, value_parser = parse_prepared)]
    prepared: Option<Prepared>,
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// What a recipe says about a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Prepared {
    recipe: Option<RecipeName>,
    warm_up: WarmUp,
}

fn parse_prepared(text: &str) -> Result<Prepared, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

impl From<&Recipe> for Prepared {
    fn from(recipe: &Recipe) -> Self {
        let warm = &recipe.warm;
        let line = |line: &Option<image::ShellLine>| line.as_ref().map(|line| line.as_str().to_owned());
        let interpreter = warm.interpreter.as_ref();
        let warm_up = WarmUp {
            interpreter: interpreter.map(|warm| warm.program),
            modules: interpreter.map(|warm| warm.modules.clone()).unwrap_or_default(),
            command: line(&warm.command),
            ready: line(&warm.ready),
        };
        Self { recipe: Some(recipe.name.clone()), warm_up }
    }
}

pub(crate) fn snapshot(args: &SnapshotArgs) -> anyhow::Result<ExitCode> {
    if let Some(id) = &args.branch.from_sandbox {
        return args.branch.run(id, args.tag.as_ref(), &args.daemon);
    }
    let tag = args.tag.as_ref().context("--tag is missing")?;
    let dirs = Dirs::from_env()?;
    let progress = progress::reporter(args.quiet);
    match place(&dirs)? {
        Place::Local => args.local(tag, &dirs, &*progress),
        Place::Machine { why } => args.in_machine(tag, &why, &dirs, &*progress),
    }
}

impl SnapshotArgs {
    /// Of a disk that has no recipe.
    pub(crate) fn of_image(
        tag: Tag,
        existing: Existing,
        boot_wait_secs: Duration,
        quiet: bool,
        guest: GuestArgs,
        warm_up: WarmUp,
    ) -> Self {
        let prepared = Some(Prepared { recipe: None, warm_up });
        let (branch, force) = (BranchArgs::default(), matches!(existing, Existing::Replace));
        let daemon = DaemonArgs::default();
        Self { tag: Some(tag), branch, force, boot_wait_secs, quiet, prepared, guest, daemon }
    }

    /// Boots, warms up and keeps it.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        snapshot(self)
    }

    fn prepared(&self, parts: &Parts) -> Prepared {
        let said = || parts.recipe.as_ref().map(Prepared::from).unwrap_or_default();
        self.prepared.clone().unwrap_or_else(said)
    }

    fn local(&self, tag: &Tag, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<ExitCode> {
        let parts = Parts::find(&self.guest, dirs, progress)?;
        let Prepared { recipe, warm_up } = self.prepared(&parts);
        let interrupts = Interrupts::catch()?;
        let boot = BootSpec {
            vcpus: parts.vcpus,
            memory: parts.memory,
            kernel: parts.kernel,
            initramfs: parts.initramfs,
            image: parts.image,
            append: self.guest.append.clone(),
            tap: None,
            limit: self.guest.boot_timeout,
            cancel: Some(interrupts.cancel()),
        };
        let existing = if self.force { Existing::Replace } else { Existing::Keep };
        let spec = SnapshotSpec { tag: tag.clone(), existing, boot, recipe, warm_up, limit: self.boot_wait_secs };
        match take(spec, dirs, progress) {
            Ok(taken) => {
                output::line(&summary(&taken))?;
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => interrupts.fatal().map_or_else(
                || Err(explain(error)),
                |signal| {
                    eprintln!("forkd: interrupted by signal {signal}; nothing is left of the snapshot");
                    Ok(stream::killed_by(signal))
                },
            ),
        }
    }

    /// Everything is built here, at native speed; a forkd inside the emulated host takes the snapshot and keeps it.
    fn in_machine(&self, tag: &Tag, why: &str, dirs: &Dirs, progress: &dyn Progress) -> anyhow::Result<ExitCode> {
        if !self.quiet {
            remote::notice(why);
        }
        let parts = Parts::find(&self.guest, dirs, progress)?;
        let remote = Remote::start(dirs, progress)?;
        let inside = remote.push_parts(&parts, progress)?;
        let mut words = vec!["snapshot".to_owned()];
        words.extend(inside.options(&self.guest));
        words.extend(self.inside(tag, &self.prepared(&parts))?);
        let interrupts = Interrupts::catch()?;
        let waiting = progress.stage("Taking the snapshot in the emulated host", None);
        let ended = remote.run(&remote.request(words, Stdio::Output), &interrupts, Some(waiting))?;
        Ok(interrupts.fatal().map_or_else(|| ended.exit_code(), stream::killed_by))
    }

    /// The words besides those that say what the VM is.
    fn inside(&self, tag: &Tag, prepared: &Prepared) -> anyhow::Result<Vec<String>> {
        let mut words = vec!["--quiet".into(), "--tag".into(), tag.to_string()];
        words.extend(["--boot-wait-secs".into(), self.boot_wait_secs.as_secs_f64().to_string()]);
        words.extend(["--prepared".into(), serde_json::to_string(prepared)?]);
        words.extend(self.force.then(|| "--force".into()));
        Ok(words)
    }
}

fn explain(error: SnapshotError) -> anyhow::Error {
    match error {
        SnapshotError::Boot(BootError::AgentSilent { .. }) => anyhow!("{error}\n(--boot-timeout sets the limit)"),
        error => error.into(),
    }
}

fn summary(taken: &Taken) -> String {
    let manifest = taken.snapshot.manifest();
    let tag = &manifest.tag;
    let seconds = |micros: u64| Duration::from_micros(micros).as_secs_f32();
    format!(
        "✓ snapshot {tag}: booted in {:.1} s, warmed up in {:.1} s, written in {:.1} s\n\
         ✓ {} of {} memory in use, {} written to disk; the snapshot occupies {}\n\
         fork it with: forkd fork --tag {tag} -n 10",
        seconds(taken.boot_us),
        seconds(taken.warm_us),
        seconds(taken.freeze_us),
        bytes(manifest.memory_stored().chain),
        manifest.memory,
        bytes(manifest.disk_stored().chain),
        bytes(manifest.stored_bytes()),
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

    fn parse(words: &[String]) -> SnapshotArgs {
        Line::try_parse_from(std::iter::once("snapshot").chain(words.iter().map(String::as_str))).unwrap().snapshot
    }

    #[test]
    fn the_forkd_inside_is_asked_for_the_same() {
        let words = ["--recipe", "python-numpy", "--tag", "pyagent", "--boot-wait-secs", "7.5", "--force"];
        let outside = parse(&words.map(String::from));
        let recipe = Recipe::find("python-numpy").unwrap();
        let prepared = Prepared::from(&recipe);
        assert_eq!(prepared.warm_up.interpreter, Some(types::Interpreter::Python3));
        let inside = parse(&outside.inside(&"pyagent".parse().unwrap(), &prepared).unwrap());
        assert_eq!(inside.prepared, Some(prepared));
        assert_eq!((inside.tag, inside.boot_wait_secs), (outside.tag, Duration::from_millis(7500)));
        assert!(inside.force && inside.quiet);
    }
}
