//! `forkd bench`: what the verbs cost here, one after the other: fork one, run a command in it, branch it, fork the branch.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, ensure};
use api::{BranchMode, BranchSandbox, ExecRequest, ExecResult, ForkSnapshot, Removed, SnapshotInfo, SnapshotStatus};
use clap::{ArgAction, Args};
use client::{Client, path};
use serde::Serialize;
use types::Tag;

use crate::attached::{self, Attached};
use crate::branch::take;
use crate::daemon::DaemonArgs;
use crate::interrupts::Interrupts;
use crate::output::Shown;
use crate::{progress, stream};

/// How long all forks of a step may take to be ready, in an emulated host that is busy.
const FORK_SECS: f64 = 600.0;

const EXAMPLES: &str = "\
Examples:
  forkd bench --tag pyagent
  forkd bench -n 100 --json

A sandbox is ready when its agent has answered. Nothing stays. The `bench` program of the sources measures more, and more
exactly.";

/// Measures a spawn, a command, a branch and forks of the branch
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// The snapshot [default: the first that `forkd images` lists]
    #[arg(long, value_name = "TAG")]
    tag: Option<Tag>,
    /// How many forks of the branch
    #[arg(short = 'n', long = "n", value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
    /// Every sandbox that has a network has its own, whatever is said here
    #[arg(long, hide = true, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    per_child_netns: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// What each step took.
#[derive(Debug, Serialize)]
struct Measured {
    tag: Tag,
    n: u32,
    spawn_ms: f64,
    exec_ms: f64,
    branch_ms: f64,
    /// How long the sandbox stood still for the branch.
    pause_ms: f64,
    fan_out_ms: f64,
    cleanup_ms: f64,
}

pub(crate) fn bench(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let client = args.daemon.client()?;
    let tag = args.meant(&client)?;
    let interrupts = Interrupts::catch()?;
    let stage = progress::reporter(args.json).stage("Measuring", None);
    let measured = args.measured(&client, tag, &interrupts);
    drop(stage);
    if let Some(signal) = interrupts.fatal() {
        return Ok(stream::killed_by(signal));
    }
    let measured = measured?.context("the measurement was cut short")?;
    Shown::of(args.json).line(&measured, || measured.text())?;
    Ok(ExitCode::SUCCESS)
}

impl BenchArgs {
    fn meant(&self, client: &Client) -> anyhow::Result<Tag> {
        if let Some(tag) = &self.tag {
            return Ok(tag.clone());
        }
        let all: Vec<SnapshotInfo> = client.get(&path(&["snapshots"], &[]))?;
        let first = all.into_iter().find(|one| one.status == SnapshotStatus::Ready);
        Ok(first.context("there is no snapshot to fork; `forkd quickstart` makes one")?.tag.parse()?)
    }

    /// `None` when a signal came first.
    fn measured(&self, client: &Client, tag: Tag, interrupts: &Interrupts) -> anyhow::Result<Option<Measured>> {
        let begun = Instant::now();
        let Some(one) = fork(client, &tag, 1, interrupts)? else { return Ok(None) };
        let spawn_ms = millis(begun);
        let begun = Instant::now();
        let echo = ExecRequest { args: vec!["echo".into(), "forkd".into()], ..ExecRequest::default() };
        let said: ExecResult = client.post(&path(&["sandboxes", one.only()?, "exec"], &[]), &echo)?;
        ensure!(
            said.exit_code == 0 && said.stdout == "forkd\n",
            "the command ended with {}: {}",
            said.exit_code,
            said.stderr
        );
        let exec_ms = millis(begun);
        let begun = Instant::now();
        let branched = take(client, one.only()?, &branch())?;
        let (branch_ms, pause_ms) = (millis(begun), branched.pause_ms.unwrap_or_default());
        let begun = Instant::now();
        let many = branched.tag.parse().map_err(Into::into).and_then(|tag| fork(client, &tag, self.count, interrupts));
        let fan_out_ms = millis(begun);
        let begun = Instant::now();
        // Whatever became of the forks, the branch goes.
        let (many, forked) = many.map_or_else(|error| (None, Err(error)), |many| (many, Ok(())));
        clean_up(client, [Some(one), many], &branched.tag)?;
        forked?;
        let cleanup_ms = millis(begun);
        Ok(Some(Measured { tag, n: self.count, spawn_ms, exec_ms, branch_ms, pause_ms, fan_out_ms, cleanup_ms }))
    }
}

/// Sandboxes that cannot be ended go with us; the branch would not.
fn clean_up(client: &Client, sandboxes: [Option<Attached>; 2], branch: &str) -> anyhow::Result<()> {
    let ended = sandboxes.into_iter().flatten().map(|attached| attached.end(client));
    let ended = ended.collect::<anyhow::Result<()>>();
    let _: Removed = client.remove(&path(&["snapshots", branch], &[]))?;
    ended
}

fn fork(client: &Client, tag: &Tag, n: u32, interrupts: &Interrupts) -> anyhow::Result<Option<Attached>> {
    let asked = ForkSnapshot { n, timeout_secs: Some(FORK_SECS), ..ForkSnapshot::default() };
    attached::fork(client, tag, asked, interrupts)
}

/// Under a name that nobody else has.
fn branch() -> BranchSandbox {
    BranchSandbox { mode: Some(BranchMode::Diff), wait: true, ..BranchSandbox::default() }
}

fn millis(begun: Instant) -> f64 {
    (begun.elapsed().as_secs_f64() * 1e6).round() / 1e3
}

impl Measured {
    fn text(&self) -> String {
        let forks = format!("fork {} of the branch", self.n);
        let rows = [
            ("spawn 1", self.spawn_ms),
            ("exec echo", self.exec_ms),
            ("branch, stored", self.branch_ms),
            ("  of that it stood still", self.pause_ms),
            (forks.as_str(), self.fan_out_ms),
            ("cleanup", self.cleanup_ms),
        ];
        let lines = rows.map(|(step, ms)| format!("{step:<26}  {ms:>9.1} ms"));
        format!("snapshot {}\n{}", self.tag, lines.join("\n"))
    }
}

/// Not offered: there is no userfaultfd here
#[derive(Debug, Args)]
pub(crate) struct WpBenchArgs {
    #[arg(long, hide = true, default_value_t = 64)]
    region_mib: u64,
    #[arg(long, hide = true, default_value = "/tmp/forkd-wp-bench.snapshot")]
    snapshot: std::path::PathBuf,
}

pub(crate) fn wp_bench(_: &WpBenchArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!(
        "wp-bench is not offered: it measures userfaultfd's write protection, by which no branch is taken here; \
         `forkd bench` measures what one costs"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_a_line() {
        let tag = "t".parse().unwrap();
        let measured = Measured {
            tag,
            n: 5,
            spawn_ms: 1.25,
            exec_ms: 2.0,
            branch_ms: 30.0,
            pause_ms: 0.5,
            fan_out_ms: 12_345.6,
            cleanup_ms: 7.0,
        };
        let text = measured.text();
        assert!(text.starts_with("snapshot t\nspawn 1                           1.2 ms\n"), "{text}");
        assert!(text.contains("\nfork 5 of the branch          12345.6 ms\n"), "{text}");
    }
}
