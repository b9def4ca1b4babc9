//! `forkd snapshot-info`: where a snapshot comes from, what is made of it, and what it takes.

use std::process::ExitCode;

use api::{SnapshotDetail, SnapshotStatus};
use clap::Args;
use client::path;
use serde_json::{Value, json};
use types::Tag;

use crate::daemon::DaemonArgs;
use crate::output;
use crate::table::{age, bytes, memory, now};

/// Tells about a snapshot: its chain of layers, its relatives and its sizes
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  forkd snapshot-info pyagent\n  forkd snapshot-info pyagent --json | jq .chain_depth"
)]
pub(crate) struct SnapshotInfoArgs {
    /// Which one
    #[arg(value_name = "TAG")]
    tag: Tag,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn snapshot_info(args: &SnapshotInfoArgs) -> anyhow::Result<ExitCode> {
    let detail: SnapshotDetail =
        args.daemon.keeping(&args.tag)?.get(&path(&["snapshots", args.tag.as_str(), "info"], &[]))?;
    if args.json {
        output::line(&as_json(&detail).to_string())?;
    } else {
        output::line(&as_text(&detail, now()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_text(detail: &SnapshotDetail, now: u64) -> String {
    let mut lines = vec![("tag", detail.tag.clone()), ("status", status(detail))];
    // What comes before one that is gone is not known: those are the first.
    let gone = detail.missing_ancestors.iter().map(|tag| format!("{tag} (gone)"));
    let line: Vec<String> = gone.chain(detail.ancestors.iter().chain([&detail.tag]).cloned()).collect();
    lines.push(("lineage", line.join(" > ")));
    let dependants = &detail.dependents;
    lines.push(("made of it", if dependants.is_empty() { "nothing".into() } else { dependants.join(", ") }));
    lines.push(("age", age(now.saturating_sub(detail.created_at_unix.unwrap_or_default()))));
    if detail.status == SnapshotStatus::Ready {
        lines.extend(detail.branched_from.iter().map(|from| ("made from", from.clone())));
        lines.push(("chain", format!("{} above the lowest layer", detail.chain_depth)));
        let kept = stored(detail.memory_physical_bytes, detail.memory_own_bytes);
        lines.push(("memory", format!("{kept} of {}", memory(detail.memory_logical_bytes))));
        let disk = stored(detail.disk_physical_bytes, detail.disk_own_bytes);
        lines.push(("disk", format!("{disk} of {}", bytes(detail.disk_logical_bytes))));
        lines.push(("state", bytes(detail.vmstate_bytes)));
    }
    let lines = lines.into_iter().map(|(name, value)| format!("{name:<12}{value}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn status(detail: &SnapshotDetail) -> String {
    match &detail.warning {
        Some(reason) => format!("{}: {reason}", detail.status.as_str()),
        None => detail.status.as_str().to_owned(),
    }
}

fn stored(chain: u64, own: u64) -> String {
    if chain == own { bytes(chain) } else { format!("{} ({} its own)", bytes(chain), bytes(own)) }
}

/// What is only known of one that is ready is not told of others.
fn as_json(detail: &SnapshotDetail) -> Value {
    let mut json = json!(detail);
    if let (Value::Object(fields), false) = (&mut json, detail.status == SnapshotStatus::Ready) {
        let measured =
            |name: &String| name.ends_with("_bytes") || ["chain_depth", "parent_content_hash"].contains(&&**name);
        fields.retain(|name, _| !measured(name));
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(status: SnapshotStatus) -> SnapshotDetail {
        SnapshotDetail {
            tag: "b".into(),
            id: "x".into(),
            status,
            warning: None,
            dir: "/d".into(),
            created_at_unix: Some(5),
            memory_logical_bytes: 512 << 20,
            memory_physical_bytes: 20 << 20,
            memory_own_bytes: 4096,
            disk_logical_bytes: 1 << 30,
            disk_physical_bytes: 20 << 20,
            disk_own_bytes: 20 << 20,
            vmstate_bytes: 8192,
            branched_from: Some("sb-1".into()),
            pause_us: None,
            parent_tag: Some("a".into()),
            parent_content_hash: None,
            chain_depth: 1,
            dependents: vec!["c".into()],
            ancestors: vec!["a".into()],
            missing_ancestors: vec!["root".into()],
        }
    }

    #[test]
    fn what_failed_says_why_and_where_it_comes_from() {
        let failed = SnapshotDetail { warning: Some("the disk is full".into()), ..detail(SnapshotStatus::Failed) };
        let expected = "\
tag         b
status      failed: the disk is full
lineage     root (gone) > a > b
made of it  c
age         60 s";
        assert_eq!(as_text(&failed, 65), expected);
        let json = as_json(&failed);
        assert_eq!((&json["ancestors"], &json["missing_ancestors"]), (&json!(["a"]), &json!(["root"])));
        assert_eq!((&json["parent_tag"], &json["warning"]), (&json!("a"), &json!("the disk is full")));
        assert_eq!((json.get("vmstate_bytes"), json.get("chain_depth")), (None, None));
    }

    #[test]
    fn sizes_tell_what_is_its_own() {
        let text = as_text(&detail(SnapshotStatus::Ready), 65);
        assert!(text.contains("memory      20 MiB (4096 B its own) of 512 MiB\n"), "{text}");
        assert!(text.contains("disk        20 MiB of 1024 MiB\nstate       8192 B"), "{text}");
    }
}
