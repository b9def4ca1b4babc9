//! `forkd quickstart`: from nothing to a first fork. A VM is warmed up once, forked, and every fork is asked to calculate.

mod question;
mod report;

use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use api::{ForkSnapshot, Removed, SnapshotInfo, SnapshotStatus, Took};
use clap::Args;
use client::{Client, path};
use engine::doctor::{Check, Report as Examined, Verdict, examine};
use engine::place::Place;
use image::build_image;
use types::{Dirs, Tag};

use crate::attached;
use crate::daemon::DaemonArgs;
use crate::from_image::DiskArgs;
use crate::interrupts::Interrupts;
use crate::parts::Built;
use crate::run::GuestArgs;
use crate::snapshot::{HowArgs, SnapshotArgs};
use crate::{doctor, output, progress, stream};
use question::Question;
use report::{Made, Report};

const TAG: &str = "quickstart";
const RECIPE: &str = "python-numpy";
/// How long all forks together may take to be ready, in an emulated host that is busy.
const FORK_SECS: f64 = 600.0;

const EXAMPLES: &str = "\
Examples:
  forkd quickstart                                  ten forks of a VM with Python and numpy
  forkd quickstart -n 100 -y                        a hundred, without being asked
  forkd quickstart --image python:3.12-slim         of a container image instead
  forkd quickstart --recipe ./mine/recipe.toml      or of a recipe
  forkd quickstart --rm                             of which nothing stays

The snapshot stays and is called `quickstart`; the forks are ended. `forkd rmi quickstart` removes it.";

/// Shows what forkd does: warms up a VM, forks it and has every fork calculate
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct QuickstartArgs {
    /// How many forks
    #[arg(short = 'n', long = "n", value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
    /// The recipe of the VM: a name, or the path of a recipe.toml [default: python-numpy]
    #[arg(long, value_name = "NAME", conflicts_with = "image")]
    recipe: Option<String>,
    /// A container image instead; `forkd from-image --help` lists the ways to say it
    #[arg(long, value_name = "SOURCE")]
    image: Option<String>,
    #[command(flatten)]
    terms: TermArgs,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// What may be done to this computer.
#[derive(Debug, Args)]
struct TermArgs {
    /// Does not ask before something is downloaded and built
    #[arg(long, short)]
    yes: bool,
    /// Removes the snapshot at the end, unless it was there before
    #[arg(long)]
    rm: bool,
}

pub(crate) fn quickstart(args: &QuickstartArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    let examined = examine(&dirs);
    args.tell(&findings(&examined))?;
    let Some(place) = &examined.place else { bail!("VMs cannot run here; `forkd doctor` says all that was found") };
    let interrupts = Interrupts::catch()?;
    let (client, _) = args.daemon.reach(true)?;
    let Some(made) = args.snapshot(&client, &dirs, &interrupts)? else { return Ok(interrupted(&interrupts)) };
    let stays = !args.terms.rm || made.prepared.is_none();
    let shown = args.show(place, made, stays, &client, &interrupts);
    if !stays {
        let _: Removed = client.remove(&path(&["snapshots", TAG], &[]))?;
    }
    shown
}

fn interrupted(interrupts: &Interrupts) -> ExitCode {
    let signal = interrupts.fatal().unwrap_or_default();
    eprintln!("forkd: interrupted by signal {signal}; no sandbox is left");
    stream::killed_by(signal)
}

/// What `forkd doctor` found, in short: what is in the way, and where VMs run.
fn findings(examined: &Examined) -> String {
    let line = |check: &Check| {
        let fix = check.fix.as_ref().map(|fix| format!("\n    fix: {fix}")).unwrap_or_default();
        format!("  ✗ {}: {}{fix}", check.name, check.detail)
    };
    let in_the_way = examined.checks.iter().filter(|check| check.verdict == Verdict::Fail).map(line);
    let kvm = examined.checks.iter().find(|check| check.name == "kvm").map(|check| check.detail.as_str());
    let count = |of: fn(Verdict) -> bool| examined.checks.iter().filter(|check| of(check.verdict)).count();
    let (passed, made) = (count(|it| it == Verdict::Pass), count(|it| it != Verdict::Skip));
    let found = format!("  ✓ {passed} of {made} checks passed (forkd doctor)");
    let place = format!("  {} kvm: {}", doctor::conclusion(examined.place.as_ref()), kvm.unwrap_or("not looked at"));
    let lines = ["What this machine can do:\n".into(), found, place];
    lines.into_iter().chain(in_the_way).collect::<Vec<_>>().join("\n")
}

impl QuickstartArgs {
    /// For a person only.
    fn tell(&self, text: &str) -> anyhow::Result<()> {
        if self.json { Ok(()) } else { output::line(text) }
    }

    /// Forks it, asks the forks and tells what came of it.
    fn show(
        &self,
        place: &Place,
        made: Made,
        stays: bool,
        client: &Client,
        interrupts: &Interrupts,
    ) -> anyhow::Result<ExitCode> {
        let question = Question::about(&made.info);
        self.tell(&format!("\nIt is forked {} times, and every fork calculates:\n", self.count))?;
        let asked = ForkSnapshot { n: self.count, timeout_secs: Some(FORK_SECS), ..ForkSnapshot::default() };
        let stage = progress::reporter(self.json).stage(&format!("Forking {} sandboxes", self.count), None);
        let forked = attached::fork(client, &TAG.parse()?, asked, interrupts)?;
        drop(stage);
        let Some(forked) = forked else { return Ok(interrupted(interrupts)) };
        let ids: Vec<_> = forked.forked.sandboxes.iter().map(|one| one.sandbox.id.clone()).collect();
        let begun = Instant::now();
        let answers = question.ask_all(client, &ids);
        let asked_for = begun.elapsed();
        let inside = ids.first().and_then(|id| question::inside(client, id));
        let children = forked.forked.clone();
        let report = Report { place: place.clone(), made, stays, question, children, answers, asked_for, inside };
        forked.end(client)?;
        output::line(&if self.json { report.json().to_string() } else { report.text() })?;
        let all_right = report.right() == report.children.sandboxes.len() && !report.children.sandboxes.is_empty();
        Ok(if all_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The snapshot, made if it is not there. `None` when a signal came first.
    fn snapshot(&self, client: &Client, dirs: &Dirs, interrupts: &Interrupts) -> anyhow::Result<Option<Made>> {
        let all: Vec<SnapshotInfo> = client.get(&path(&["snapshots"], &[]))?;
        let found = all.into_iter().find(|one| one.tag == TAG && one.status == SnapshotStatus::Ready);
        if let Some(info) = found {
            let recipe = info.recipe.as_deref().unwrap_or_default();
            if self.recipe.is_some() || self.image.is_some() {
                bail!(
                    "there is a snapshot `{TAG}` already, made of {recipe}; `forkd rmi {TAG}` makes room for another"
                );
            }
            self.tell(&format!("\nThe snapshot {TAG} is there already, made of {recipe}."))?;
            return Ok(Some(Made { info, prepared: None }));
        }
        let what = self.image.as_deref().or(self.recipe.as_deref()).unwrap_or(RECIPE);
        self.tell(&format!("\nA VM of {what} boots once and is warmed up:\n"))?;
        if !self.agreed(dirs)? {
            bail!("nothing was done; -y does not ask");
        }
        let begun = Instant::now();
        let Some(info) = self.args(dirs)?.make(interrupts)? else { return Ok(None) };
        let took = info.took.map_or(0.0, |Took { boot_ms, warm_ms, write_ms }| boot_ms + warm_ms + write_ms);
        let prepared = begun.elapsed().saturating_sub(Duration::from_secs_f64(took.max(0.0) / 1000.0));
        Ok(Some(Made { info, prepared: Some(prepared) }))
    }

    fn args(&self, dirs: &Dirs) -> anyhow::Result<SnapshotArgs> {
        let (tag, how): (Tag, _) = (TAG.parse()?, HowArgs::quiet(self.json));
        let Some(source) = &self.image else {
            let recipe = self.recipe.clone().unwrap_or_else(|| RECIPE.into());
            return Ok(SnapshotArgs::of_guest(tag, how, GuestArgs::of_recipe(recipe), self.daemon.clone()));
        };
        let (recipe, word) = DiskArgs::default().recipe(source)?;
        self.daemon.opens_what_is_here(source)?;
        let image = build_image(&recipe, dirs, &*progress::reporter(self.json))?.path;
        let snapshot = SnapshotArgs::of_guest(tag, how, GuestArgs::of_recipe(word), self.daemon.clone());
        Ok(snapshot.built(Built { recipe, image }))
    }

    /// Whoever cannot be asked has agreed by asking for it.
    fn agreed(&self, dirs: &Dirs) -> anyhow::Result<bool> {
        if self.terms.yes || self.json || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Ok(true);
        }
        eprint!(
            "What is missing is downloaded and built below {} (some hundred megabytes, a minute or two). Go on? [Y/n] ",
            dirs.cache.display()
        );
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "" | "y" | "Y" | "yes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_is_told_with_its_fix() {
        let checks = vec![
            Check::pass("platform", "Linux"),
            Check::warn("kvm", "it hangs", "use another machine"),
            Check::fail("disk", "full", "make room"),
        ];
        let said = findings(&Examined { checks, place: Some(Place::Machine { why: "it hangs".into() }) });
        let expected = "\
What this machine can do:

  ✓ 1 of 3 checks passed (forkd doctor)
  VMs run in the emulated host. kvm: it hangs
  ✗ disk: full
    fix: make room";
        assert_eq!(said, expected);
    }
}
