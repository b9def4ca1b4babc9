//! `forkd ls`: the sandboxes that live.

use std::process::ExitCode;

use api::SandboxInfo;
use clap::Args;
use client::path;

use crate::daemon::DaemonArgs;
use crate::output;
use crate::table::{Column, age, now, table};

const EXAMPLES: &str = "\
Examples:
  forkd ls
  forkd ls --json | jq -r '.[].id'

PRIVATE is memory that is the sandbox's alone, SHARED what it shares with others of its snapshot, LIMIT what it may use.
HIT says which limits it ran into: throttled (CPU time or memory, it waits), disk-full (its disks give
errors), pids (its VMM got no more threads).";

/// Lists the sandboxes that run
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct LsArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn ls(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let client = args.daemon.running()?;
    let asked = client.map(|client| client.get(&path(&["sandboxes"], &[("memory", "true")]))).transpose()?;
    let found: Vec<SandboxInfo> = asked.unwrap_or_default();
    output::line(&if args.json { serde_json::to_string(&found)? } else { as_table(&found, now()) })?;
    Ok(ExitCode::SUCCESS)
}

/// Which limits it has hit; one that runs was not ended.
fn hit(one: &SandboxInfo) -> String {
    let words = [(one.throttled, "throttled"), (one.disk_full, "disk-full"), (one.pids_limited, "pids")];
    let words: Vec<_> = words.into_iter().filter_map(|(hit, word)| hit.then_some(word)).collect();
    if words.is_empty() { "-".into() } else { words.join(",") }
}

fn as_table(found: &[SandboxInfo], now: u64) -> String {
    let columns = [
        Column::Left("ID"),
        Column::Left("SNAPSHOT"),
        Column::Right("PID"),
        Column::Right("AGE"),
        Column::Right("PRIVATE KiB"),
        Column::Right("SHARED KiB"),
        Column::Right("LIMIT MiB"),
        Column::Left("STATUS"),
        Column::Left("HIT"),
    ];
    let dash = || "-".to_owned();
    let rows = found.iter().map(|one| {
        [
            one.id.clone(),
            one.snapshot_tag.clone(),
            one.pid.map_or_else(dash, |pid| pid.to_string()),
            age(now.saturating_sub(one.created_at_unix)),
            one.memory.map_or_else(dash, |memory| (memory.private_kib + memory.tables_kib).to_string()),
            one.memory.map_or_else(dash, |memory| memory.shared_kib.to_string()),
            one.memory_limit_mib.map_or_else(dash, |limit| limit.to_string()),
            one.status.as_str().to_owned(),
            hit(one),
        ]
    });
    table(columns, &rows.collect::<Vec<_>>())
}
