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

NETNS is its network namespace, in which it answers at GUEST_ADDR; BRANCHES is how many were taken of it.
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

/// The first six columns are where scripts of the published command line look for them.
fn as_table(found: &[SandboxInfo], now: u64) -> String {
    let columns = [
        Column::Left("ID"),
        Column::Left("SNAPSHOT"),
        Column::Right("PID"),
        Column::Left("NETNS"),
        Column::Right("BRANCHES"),
        Column::Left("GUEST_ADDR"),
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
            one.netns.clone().unwrap_or_else(dash),
            one.branch_count.to_string(),
            if one.guest_addr.is_empty() { dash() } else { one.guest_addr.clone() },
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_columns_are_where_scripts_look() {
        let one: SandboxInfo = serde_json::from_value(json!({
            "id": "sb-1", "snapshot_tag": "t", "netns": "forkd-child-7", "guest_addr": "10.42.0.2:8888",
            "created_at_unix": 1, "pid": 100, "memory_limit_mib": null, "has_branched": true,
            "last_branch_memory_path": null, "branch_count": 3, "status": "running", "labels": {},
            "expires_at_unix": null, "reason": null, "hostname": "sb-1",
        }))
        .unwrap();
        let text = as_table(&[one], 1);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().take(6).collect()).collect();
        assert_eq!(words[0], ["ID", "SNAPSHOT", "PID", "NETNS", "BRANCHES", "GUEST_ADDR"]);
        assert_eq!(words[1], ["sb-1", "t", "100", "forkd-child-7", "3", "10.42.0.2:8888"]);
    }
}
