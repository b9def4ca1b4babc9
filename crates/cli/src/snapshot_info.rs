//! `forkd snapshot-info`: where a snapshot comes from, what is made of it, and what it takes.

use std::process::ExitCode;

use clap::Args;
use engine::{Info, Manifest, Status, Store, Stored};
use serde_json::{Value, json};
use types::{Dirs, Tag};

use crate::forward::{Forward, Need};
use crate::output;
use crate::table::{age, bytes, now};

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
}

pub(crate) fn snapshot_info(args: &SnapshotInfoArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Kept).away(&dirs)? {
        return Ok(code);
    }
    let store = Store::new(&dirs);
    let info = store.info(&args.tag)?;
    if args.json {
        let mut json = as_json(&args.tag, &info);
        json["dir"] = json!(store.path(&args.tag));
        output::line(&json.to_string())?;
    } else {
        output::line(&as_text(&args.tag, &info, now()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_text(tag: &Tag, info: &Info, now: u64) -> String {
    let mut lines = vec![("tag", tag.to_string()), ("status", status(&info.status))];
    let parents =
        info.ancestors.iter().map(|it| if it.is_there { it.tag.to_string() } else { format!("{} (gone)", it.tag) });
    let line: Vec<String> = parents.chain([tag.to_string()]).collect();
    lines.push(("lineage", line.join(" > ")));
    let dependants: Vec<_> = info.dependants.iter().map(Tag::as_str).collect();
    lines.push(("made of it", if dependants.is_empty() { "nothing".into() } else { dependants.join(", ") }));
    lines.push(("age", age(now.saturating_sub(info.status.created_unix()))));
    if let Some(manifest) = info.manifest() {
        lines.extend(manifest.branched_from.iter().map(|from| ("made from", from.clone())));
        lines.push(("chain", format!("{} above the lowest layer", manifest.depth())));
        lines.push(("memory", format!("{} of {}", stored(manifest.memory_stored()), manifest.memory)));
        lines.push(("disk", format!("{} of {}", stored(manifest.disk_stored()), bytes(disk_length(manifest)))));
        lines.push(("state", bytes(manifest.state.bytes)));
    }
    let lines = lines.into_iter().map(|(name, value)| format!("{name:<12}{value}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn status(status: &Status) -> String {
    match status {
        Status::Failed(failure) => format!("failed: {}", failure.reason),
        status => status.word().to_owned(),
    }
}

fn stored(stored: Stored) -> String {
    match stored {
        Stored { chain, own } if chain == own => bytes(chain),
        Stored { chain, own } => format!("{} ({} its own)", bytes(chain), bytes(own)),
    }
}

fn disk_length(manifest: &Manifest) -> u64 {
    manifest.disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.length))
}

fn as_json(tag: &Tag, info: &Info) -> Value {
    let there = |wanted: bool| -> Vec<_> {
        info.ancestors.iter().filter(|it| it.is_there == wanted).map(|it| it.tag.clone()).collect()
    };
    let mut json = json!({
        "tag": tag,
        "id": info.status.id(),
        "status": info.status.word(),
        "created_at_unix": info.status.created_unix(),
        "parent_tag": info.parent().map(|parent| &parent.tag),
        "ancestors": there(true),
        "missing_ancestors": there(false),
        "dependents": info.dependants,
    });
    if let Status::Failed(failure) = &info.status {
        json["warning"] = failure.reason.as_str().into();
    }
    if let Some(manifest) = info.manifest() {
        let (memory, disk) = (manifest.memory_stored(), manifest.disk_stored());
        let below = manifest.depth().checked_sub(1).and_then(|below| manifest.memory_layers.get(below));
        json["branched_from"] = json!(manifest.branched_from);
        json["pause_us"] = json!(manifest.pause_us);
        json["chain_depth"] = manifest.depth().into();
        json["parent_content_hash"] = json!(below.map(|layer| layer.digest));
        json["memory_logical_bytes"] = json!(manifest.memory);
        json["memory_physical_bytes"] = memory.chain.into();
        json["memory_own_bytes"] = memory.own.into();
        json["disk_logical_bytes"] = disk_length(manifest).into();
        json["disk_physical_bytes"] = disk.chain.into();
        json["disk_own_bytes"] = disk.own.into();
        json["vmstate_bytes"] = manifest.state.bytes.into();
    }
    json
}

#[cfg(test)]
mod tests {
    use engine::{Ancestor, Failure};

    use super::*;

    #[test]
    fn what_failed_says_why_and_where_it_comes_from() {
        let failure: Failure = serde_json::from_value(json!({
            "intent": {
                "tag": "b", "id": "x", "created_unix": 5, "parent": { "tag": "a", "id": "y" }, "branched_from": "sb-1",
                "under": [],
            },
            "reason": "the disk is full",
        }))
        .unwrap();
        let ancestor = |tag: &str, is_there| Ancestor { tag: tag.parse().unwrap(), is_there };
        let info = Info {
            status: Status::Failed(failure),
            ancestors: vec![ancestor("root", false), ancestor("a", true)],
            dependants: vec!["c".parse().unwrap()],
        };
        let expected = "\
tag         b
status      failed: the disk is full
lineage     root (gone) > a > b
made of it  c
age         60 s";
        let tag = "b".parse().unwrap();
        assert_eq!(as_text(&tag, &info, 65), expected);
        let json = as_json(&tag, &info);
        assert_eq!((&json["ancestors"], &json["missing_ancestors"]), (&json!(["a"]), &json!(["root"])));
        assert_eq!((&json["parent_tag"], &json["warning"]), (&json!("a"), &json!("the disk is full")));
    }

    #[test]
    fn sizes_tell_what_is_its_own() {
        assert_eq!(stored(Stored { chain: 20 << 20, own: 20 << 20 }), "20 MiB");
        assert_eq!(stored(Stored { chain: 20 << 20, own: 4096 }), "20 MiB (4096 B its own)");
    }
}
