//! `forkd ls`: the children that live.

use std::process::ExitCode;

use clap::Args;
use engine::{Child, Hits, MemoryUse, list};
use serde_json::{Value, json};
use types::Dirs;

use crate::forward::{Forward, Need};
use crate::output;
use crate::table::{Column, age, now, table};

const EXAMPLES: &str = "\
Examples:
  forkd ls
  forkd ls --json | jq -r '.[].id'

PRIVATE is memory that is the sandbox's alone, SHARED what it shares with others of its snapshot, LIMIT what it may use.
HIT says which limits it ran into: throttled (CPU time or memory, it waits), disk-full (its disks give errors).";

/// Lists the sandboxes that run
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct LsArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A child and what is known of it now.
struct Row {
    child: Child,
    pid: Option<i32>,
    memory: Option<MemoryUse>,
    hits: Hits,
}

pub(crate) fn ls(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Running).away(&dirs)? {
        return Ok(code);
    }
    let rows: Vec<Row> = list(&dirs)?.into_iter().map(look).collect();
    if args.json {
        output::line(&Value::Array(rows.iter().map(as_json).collect()).to_string())?;
    } else {
        output::line(&as_table(&rows, now()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One that ends while it is looked at is shown without a process.
fn look(child: Child) -> Row {
    let pid = child.pid().unwrap_or_else(|error| {
        log::warn!("{}: {error}", child.id());
        None
    });
    let memory = child.memory().unwrap_or_else(|error| {
        log::debug!("the memory of {}: {error}", child.id());
        None
    });
    let hits = child.hits().unwrap_or_else(|error| {
        log::debug!("the limits of {}: {error}", child.id());
        Hits::default()
    });
    Row { child, pid, memory, hits }
}

/// Which limits it has hit; one that runs was not ended.
fn hit(hits: Hits) -> String {
    let words = [(hits.throttled, "throttled"), (hits.disk_full, "disk-full")];
    let words: Vec<_> = words.into_iter().filter_map(|(hit, word)| hit.then_some(word)).collect();
    if words.is_empty() { "-".into() } else { words.join(",") }
}

fn as_table(rows: &[Row], now: u64) -> String {
    let columns = [
        Column::Left("ID"),
        Column::Left("SNAPSHOT"),
        Column::Right("PID"),
        Column::Right("AGE"),
        Column::Right("PRIVATE KiB"),
        Column::Right("SHARED KiB"),
        Column::Right("LIMIT MiB"),
        Column::Left("HIT"),
    ];
    let dash = || "-".to_owned();
    let rows = rows.iter().map(|row| {
        [
            row.child.id().to_owned(),
            row.child.tag().to_string(),
            row.pid.map_or_else(dash, |pid| pid.to_string()),
            age(now.saturating_sub(row.child.created_unix_ms() / 1000)),
            row.memory.map_or_else(dash, |memory| (memory.private_kib + memory.tables_kib).to_string()),
            row.memory.map_or_else(dash, |memory| memory.shared_kib.to_string()),
            row.child.limits().memory.map_or_else(dash, |limit| limit.mib().to_string()),
            hit(row.hits),
        ]
    });
    table(columns, &rows.collect::<Vec<_>>())
}

fn as_json(row: &Row) -> Value {
    json!({
        "id": row.child.id(),
        "snapshot_tag": row.child.tag(),
        "pid": row.pid,
        "created_at_unix": row.child.created_unix_ms() / 1000,
        "memory": row.memory,
        "memory_limit_mib": row.child.limits().memory,
        "limits": row.child.limits(),
        "throttled": row.hits.throttled,
        "disk_full": row.hits.disk_full,
    })
}
