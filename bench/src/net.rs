//! What a network of a sandbox's own costs: at the spawn, and for every packet.
//!
//! ```text
//! spawn     on this host's KVM, in turn: children without a network card, and children with one and a network of a pool
//! packets   where Linux runs in VMs, in turn: one guest's network with its rules, and the same tap and veth without
//! ```
//!
//! The spawn is measured in namespaces of the program's own, so the host's networks stay as they are.

mod packets;
mod spawn;

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use types::Tag;

use crate::forkd::host;
use crate::site::Site;

/// What the snapshot is called for as long as it is there.
const OWN_TAG: &str = "bench-net";
/// What a network may add to a spawn.
const ADDED_GOAL_MS: f64 = 0.2;

#[derive(Debug, clap::Args)]
pub(crate) struct NetArgs {
    /// How many VMs at once, for the spawn
    #[arg(short, default_value_t = 100)]
    n: usize,
    /// How many rounds of each
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Megabytes sent each way in a round
    #[arg(long, default_value_t = 16)]
    megabytes: usize,
    /// Leaves out one part: `spawn` or `packets`
    #[arg(long, value_name = "PART", value_parser = ["spawn", "packets"])]
    without: Option<String>,
    /// Measures one part right here, and prints only that
    #[arg(long, hide = true)]
    here: Option<String>,
}

pub(crate) fn run(args: &NetArgs) -> Result<()> {
    ensure!(args.n > 0 && args.rounds > 0 && args.megabytes > 0, "nothing is measured by no VM, round or byte");
    match args.here.as_deref() {
        Some("spawn") => println!("{}", spawn::run(args.n, args.rounds)?),
        Some(_) => println!("{}", packets::run(&OWN_TAG.parse()?, args.rounds, args.megabytes)?),
        None => {
            let wanted = |part: &str| args.without.as_deref() != Some(part);
            let spawn = wanted("spawn").then(|| ask_for_spawn(args)).transpose()?;
            let packets = wanted("packets").then(|| ask_for_packets(args)).transpose()?;
            let added = spawn.as_ref().and_then(|spawn| spawn["added_ms"]["median"].as_f64());
            let goal =
                json!({ "found": added, "limit": ADDED_GOAL_MS, "met": added.map(|added| added < ADDED_GOAL_MS) });
            let report = json!({
                "bench": "net", "host": host(), "spawn": spawn, "packets": packets, "goals": { "added_ms_per_vm": goal },
            });
            println!("{report:#}");
        }
    }
    Ok(())
}

/// In a network and with mounts of its own, of which nothing is left.
fn ask_for_spawn(args: &NetArgs) -> Result<Value> {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount"]).arg(std::env::current_exe()?).args(["net", "--here", "spawn"]);
    command.args(["-n", &args.n.to_string(), "--rounds", &args.rounds.to_string()]);
    let output = command.stderr(Stdio::inherit()).output().context("unshare")?;
    ensure!(output.status.success(), "the spawns could not be measured: {}", output.status);
    serde_json::from_slice(&output.stdout).context("the report of the spawns")
}

fn ask_for_packets(args: &NetArgs) -> Result<Value> {
    let (site, tag): (_, Tag) = (Site::find()?, OWN_TAG.parse()?);
    let (rounds, megabytes) = (args.rounds.to_string(), args.megabytes.to_string());
    let words = ["net", "--here", "packets", "--rounds", &rounds, "--megabytes", &megabytes];
    let measured: Value =
        site.with_snapshot(&tag, &["--recipe", "python-numpy", "--egress", "none"], || site.ask(&words))?;
    Ok(json!({ "kvm": site.kvm(), "measured": measured }))
}
