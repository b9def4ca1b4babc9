//! `forkd fork`: many sandboxes of a snapshot.

mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use api::{ForkSnapshot, Forked, SandboxInfo};
use clap::Args;
use client::{Client, path};
use engine::Door;
use session::{Metadata, Variables};
use types::Tag;

use crate::attached::{self, Attached};
use crate::daemon::DaemonArgs;
use crate::egress::EgressArgs;
use crate::interrupts::Interrupts;
use crate::limits::LimitArgs;
use crate::published::ForkFlags;
use crate::run::parse_variable;
use crate::target::{self, Answering};
use crate::{output, progress, seconds, stream};
use report::Report;

const EXAMPLES: &str = "\
Examples:
  forkd fork --tag pyagent -n 10
  forkd fork --tag pyagent -n 100 --settle-secs 2      try it: make 100, count them, end them
  forkd fork --tag pyagent -n 3 --env RUN=7 --json | jq -r '.children[].id'
  forkd fork --tag pyagent -n 10 --memory-limit-mib 256 --egress pypi.org:443

A sandbox is ready when its agent has answered and made it somebody of its own: random numbers, clock, names.
A sandbox that needs more memory than --memory-limit-mib is ended; the others do not notice.
Without --settle-secs they stay until `forkd kill`, whatever happens to the forkd that made them.
Scripts that expect a fork to end its sandboxes after two seconds say --settle-secs 2.
With it, and -n 1, the sandbox answers at 10.42.0.2:8888 for so long, in the network that forkd runs in: that is how the
published Python class `Sandbox` reaches it. It needs root; --target says another address, or none.";

/// Forks sandboxes from a snapshot, each a VM of its own
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ForkArgs {
    /// The snapshot
    #[arg(long, value_name = "TAG")]
    tag: Tag,
    /// How many
    #[arg(short = 'n', long = "n", value_name = "N")]
    count: u32,
    /// Keeps them for so long, counts those that live, and ends them
    #[arg(long, value_name = "SECONDS", value_parser = seconds::parse_or_none)]
    settle_secs: Option<Duration>,
    /// Where the sandbox of `-n 1 --settle-secs` answers who speaks the line protocol of published clients; or none
    #[arg(long, value_name = "ADDRESS:PORT", env = target::VARIABLE, default_value = target::USUAL)]
    target: Answering,
    /// Sets an environment variable in all of them; repeatable
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Gives all of them a word of metadata; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    metadata: Vec<(String, String)>,
    /// Keeps those that work when some fail, instead of all or nothing
    #[arg(long)]
    per_child: bool,
    /// How long it may take until all are ready
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds::parse)]
    timeout: Duration,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ForkFlags,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    network: EgressArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn fork(args: &ForkArgs) -> anyhow::Result<ExitCode> {
    args.flags.tell()?;
    let asked = args.asked()?;
    // Before anything that takes time: those who wait for it would look for it elsewhere.
    let door = args.door()?;
    let client = args.daemon.client()?;
    let interrupts = Interrupts::catch()?;
    let stage = progress::reporter(false).stage(&format!("Forking {} sandboxes", args.count), None);
    let forked = args.forked(&client, asked, &interrupts)?;
    drop(stage);
    let Some(forked) = forked else {
        let signal = interrupts.fatal().unwrap_or_default();
        eprintln!("forkd: interrupted by signal {signal}; no sandbox is left");
        return Ok(stream::killed_by(signal));
    };
    let report = Report::new(&args.tag, args.count, forked.told());
    output::line(&if args.json { report.json().to_string() } else { report.text() })?;
    report.tell_failures();
    let code = if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    match (args.settle_secs, forked) {
        (Some(settle), Made::Attached(attached)) => {
            if let (Some(door), Ok(id)) = (door, attached.only()) {
                target::lead(door, &client, id).context("cannot start a thread")?;
            }
            args.settle(settle, attached, &client, &interrupts, code)
        }
        _ => {
            if !args.json {
                output::line(&report::alive(report.ready(), args.count))?;
                eprintln!("forkd: they stay; `forkd ls` lists them, `forkd kill --tag {}` ends them", args.tag);
            }
            Ok(code)
        }
    }
}

/// What was made.
enum Made {
    /// To stay.
    Staying(Forked),
    /// For as long as we do.
    Attached(Attached),
}

impl Made {
    const fn told(&self) -> &Forked {
        match self {
            Self::Staying(forked) => forked,
            Self::Attached(attached) => &attached.forked,
        }
    }
}

impl ForkArgs {
    /// `None` when a signal came first.
    fn forked(&self, client: &Client, asked: ForkSnapshot, interrupts: &Interrupts) -> anyhow::Result<Option<Made>> {
        if self.settle_secs.is_some() {
            return Ok(attached::fork(client, &self.tag, asked, interrupts)?.map(Made::Attached));
        }
        let (client, path) = (client.clone(), path(&["snapshots", self.tag.as_str(), "fork"], &[]));
        Ok(interrupts.unless(move || client.post(&path, &asked))?.transpose()?.map(Made::Staying))
    }

    /// Where the only sandbox is to answer. One on a network of its own answers there.
    fn door(&self) -> anyhow::Result<Option<Door>> {
        let wanted = self.count == 1 && self.settle_secs.is_some() && !self.flags.per_child_netns;
        if wanted { self.target.open() } else { Ok(None) }
    }

    /// All that can be checked here is checked before anything starts.
    fn asked(&self) -> anyhow::Result<ForkSnapshot> {
        let map = |pairs: &[(String, String)]| pairs.iter().cloned().collect::<BTreeMap<_, _>>();
        Variables::try_from(map(&self.env)).context("--env")?;
        Metadata::try_from(map(&self.metadata)).context("--metadata")?;
        Ok(ForkSnapshot {
            n: self.count,
            memory_limit_mib: self.limits.memory_limit_mib(),
            limits: self.limits.others(),
            egress: self.network.policy(),
            network_limits: self.network.limits(),
            ttl_secs: None,
            labels: BTreeMap::new(),
            env: map(&self.env),
            metadata: map(&self.metadata),
            keep_working: self.per_child,
            timeout_secs: Some(self.timeout.as_secs_f64()),
            attached: false,
        })
    }

    /// Waits, counts, and ends them all; a signal only cuts the waiting short.
    fn settle(
        &self,
        settle: Duration,
        attached: Attached,
        client: &Client,
        interrupts: &Interrupts,
        code: ExitCode,
    ) -> anyhow::Result<ExitCode> {
        interrupts.cancel().wait(Instant::now() + settle).context("cannot wait")?;
        let ours: BTreeSet<&str> = attached.forked.sandboxes.iter().map(|one| one.sandbox.id.as_str()).collect();
        let living: Vec<SandboxInfo> = client.get(&path(&["sandboxes"], &[("memory", "true")]))?;
        let alive = living.iter().filter(|one| ours.contains(one.id.as_str())).count();
        let line = if self.json {
            serde_json::json!({ "alive": alive, "n": self.count }).to_string()
        } else {
            report::alive(alive, self.count)
        };
        let told = output::line(&line);
        attached.end(client)?;
        told?;
        Ok(interrupts.fatal().map_or(code, stream::killed_by))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        fork: ForkArgs,
    }

    fn parse(words: &[&str]) -> Result<ForkArgs, clap::Error> {
        Line::try_parse_from(std::iter::once("fork").chain(words.iter().copied())).map(|line| line.fork)
    }

    #[test]
    fn the_words_of_the_published_clients_are_understood() {
        let args = parse(&["--tag", "pyagent", "-n", "1", "--settle-secs", "3600"]).unwrap();
        assert_eq!((args.count, args.settle_secs), (1, Some(Duration::from_secs(3600))));
        let args = parse(&["--tag", "t", "--n", "7", "--settle-secs", "0", "--live-fork"]).unwrap();
        assert_eq!((args.count, args.settle_secs), (7, Some(Duration::ZERO)));
        assert_eq!(parse(&["--tag", "t", "-n", "2"]).unwrap().settle_secs, None);
        for bad in [&["-n", "1"][..], &["--tag", "t"], &["--tag", "T/", "-n", "1"], &["--tag", "t", "-n", "many"]] {
            assert_eq!(parse(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }

    #[test]
    fn variables_are_checked_before_anything_starts() {
        let good = parse(&["--tag", "t", "-n", "1", "-e", "A=b=c", "--metadata", "run id=7"]).unwrap();
        let asked = good.asked().unwrap();
        assert_eq!((asked.env["A"].as_str(), asked.metadata["run id"].as_str()), ("b=c", "7"));
        let bad = parse(&["--tag", "t", "-n", "1", "-e", "A B=c"]).unwrap();
        assert!(crate::errors::chain(&bad.asked().unwrap_err()).contains("--env"));
    }
}
