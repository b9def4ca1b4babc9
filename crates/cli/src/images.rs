//! `forkd images`: the snapshots there are.

use std::process::ExitCode;

use api::{SnapshotInfo, SnapshotStatus, StoreInfo};
use clap::Args;
use client::path;
use serde_json::{Value, json};

use crate::daemon::DaemonArgs;
use crate::output;
use crate::table::{Column, age, bytes, memory, now, table};

/// Lists the snapshots
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  forkd images\n  forkd images --json | jq -r '.[].tag'")]
pub(crate) struct ImagesArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn images(args: &ImagesArgs) -> anyhow::Result<ExitCode> {
    let (rows, store): (Vec<SnapshotInfo>, StoreInfo) = match args.daemon.looking()? {
        Some(client) => (client.get(&path(&["snapshots"], &[]))?, client.get(&path(&["store"], &[]))?),
        None => Default::default(),
    };
    if args.json {
        output::line(&Value::Array(rows.iter().map(as_json).collect()).to_string())?;
    } else {
        output::line(&as_table(&rows, store.occupied_bytes, now()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_table(rows: &[SnapshotInfo], occupied: u64, now: u64) -> String {
    let columns = [
        Column::Left("TAG"),
        Column::Left("STATUS"),
        Column::Left("PARENT"),
        Column::Right("SIZE"),
        Column::Right("MEMORY"),
        Column::Right("VCPUS"),
        Column::Right("AGE"),
        Column::Left("RECIPE"),
        Column::Left("WARM"),
    ];
    let cells: Vec<_> = rows.iter().map(|row| cells(row, now)).collect();
    let mut text = table(columns, &cells);
    let plural = if rows.len() == 1 { "" } else { "s" };
    text += &format!("\n{} snapshot{plural}, {}", rows.len(), bytes(occupied));
    for (tag, problem) in rows.iter().filter_map(|row| Some((&row.tag, row.warning.as_ref()?))) {
        text += &format!("\n! {tag}: {problem}");
    }
    text
}

fn cells(row: &SnapshotInfo, now: u64) -> [String; 9] {
    let dash = || "-".to_owned();
    let text = |it: &Option<String>| it.clone().unwrap_or_else(dash);
    [
        row.tag.clone(),
        row.status.as_str().to_owned(),
        text(&row.parent_tag),
        row.occupied_bytes.map_or_else(dash, bytes),
        row.memory_bytes.map_or_else(dash, memory),
        row.vcpus.map_or_else(dash, |vcpus| vcpus.to_string()),
        created(row).map_or_else(dash, |created| age(now.saturating_sub(created))),
        text(&row.recipe),
        text(&row.interpreter),
    ]
}

/// Of one that is damaged it is not known.
const fn created(row: &SnapshotInfo) -> Option<u64> {
    if row.created_at_unix == 0 { None } else { Some(row.created_at_unix) }
}

fn as_json(row: &SnapshotInfo) -> Value {
    let mut json = json!({
        "tag": row.tag,
        "status": row.status,
        "parent_tag": row.parent_tag,
        "branched_from": row.branched_from,
        "created_at_unix": created(row),
    });
    if let Some(warning) = &row.warning {
        json["warning"] = warning.as_str().into();
    }
    if row.status == SnapshotStatus::Ready {
        json["id"] = json!(row.id);
        json["recipe"] = json!(row.recipe);
        json["kernel"] = json!(row.kernel);
        json["vcpus"] = json!(row.vcpus);
        json["memory_bytes"] = json!(row.memory_bytes);
        json["occupied_bytes"] = json!(row.occupied_bytes);
        json["interpreter"] = json!(row.interpreter);
        json["ports"] = json!(row.ports);
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: Value) -> SnapshotInfo {
        serde_json::from_value(value).unwrap()
    }

    fn ready(tag: &str, parent: Option<&str>, occupied: u64) -> SnapshotInfo {
        row(json!({
            "tag": tag, "dir": "/d", "created_at_unix": 1000, "status": "ready", "bootable": true,
            "parent_tag": parent, "id": "x", "recipe": "python-numpy", "kernel": "6.1", "vcpus": 2,
            "memory_bytes": 536_870_912_u64, "occupied_bytes": occupied, "interpreter": "python3",
        }))
    }

    #[test]
    fn the_damaged_are_told_below() {
        let rows = [
            ready("pyagent", None, 81 << 20),
            ready("more", Some("pyagent"), 91 << 20),
            row(json!({
                "tag": "old", "dir": "/d", "created_at_unix": 0, "status": "failed", "bootable": false,
                "warning": "no room",
            })),
        ];
        let expected = "\
TAG      STATUS  PARENT     SIZE   MEMORY  VCPUS   AGE  RECIPE        WARM
pyagent  ready   -        81 MiB  512 MiB      2  60 s  python-numpy  python3
more     ready   pyagent  91 MiB  512 MiB      2  60 s  python-numpy  python3
old      failed  -             -        -      -     -  -             -
3 snapshots, 92 MiB
! old: no room";
        assert_eq!(as_table(&rows, 92 << 20, 1060), expected);
        assert_eq!(as_json(&rows[2])["status"], "failed");
        assert_eq!(as_json(&rows[2])["created_at_unix"], Value::Null);
        assert_eq!(as_json(&rows[1])["parent_tag"], "pyagent");
        assert_eq!(as_json(&rows[0])["interpreter"], "python3");
    }
}
