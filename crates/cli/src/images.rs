//! `forkd images`: the snapshots there are.

use std::collections::HashMap;
use std::process::ExitCode;

use clap::Args;
use engine::{Listed, Manifest, Status, Store};
use serde_json::{Value, json};
use types::{Dirs, Tag};

use crate::errors::chain;
use crate::forward::{Forward, Need};
use crate::output;
use crate::table::{Column, age, bytes, now, table};

/// Lists the snapshots
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  forkd images\n  forkd images --json | jq -r '.[].tag'")]
pub(crate) struct ImagesArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A tag and what is known about it.
#[derive(Debug)]
struct Row {
    tag: Tag,
    status: &'static str,
    parent: Option<Tag>,
    branched_from: Option<String>,
    created_unix: Option<u64>,
    /// Of one that is ready.
    manifest: Option<Manifest>,
    /// Of one that is not: why.
    warning: Option<String>,
}

impl From<Listed> for Row {
    fn from((tag, found): Listed) -> Self {
        let empty = Self {
            tag,
            status: "failed",
            parent: None,
            branched_from: None,
            created_unix: None,
            manifest: None,
            warning: None,
        };
        let status = match found {
            Ok(status) => status,
            Err(error) => return Self { warning: Some(chain(&error.into())), ..empty },
        };
        let known = Self {
            status: status.word(),
            parent: status.parent().map(|parent| parent.tag.clone()),
            created_unix: Some(status.created_unix()),
            ..empty
        };
        match status {
            Status::Ready(snapshot) => {
                let manifest = snapshot.manifest().clone();
                Self { branched_from: manifest.branched_from.clone(), manifest: Some(manifest), ..known }
            }
            Status::Writing(intent) => Self { branched_from: intent.branched_from, ..known },
            Status::Failed(failure) => {
                Self { branched_from: failure.intent.branched_from, warning: Some(failure.reason), ..known }
            }
        }
    }
}

pub(crate) fn images(args: &ImagesArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Kept).away(&dirs)? {
        return Ok(code);
    }
    let rows: Vec<Row> = Store::new(&dirs).list()?.into_iter().map(Row::from).collect();
    if args.json {
        output::line(&Value::Array(rows.iter().map(as_json).collect()).to_string())?;
    } else {
        output::line(&as_table(&rows, now()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_table(rows: &[Row], now: u64) -> String {
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
    text += &format!("\n{} snapshot{plural}, {}", rows.len(), bytes(occupied(rows)));
    for (tag, problem) in rows.iter().filter_map(|row| Some((&row.tag, row.warning.as_ref()?))) {
        text += &format!("\n! {tag}: {problem}");
    }
    text
}

/// What they share counts once.
fn occupied(rows: &[Row]) -> u64 {
    let manifests = || rows.iter().filter_map(|row| row.manifest.as_ref());
    let layers: HashMap<_, _> =
        manifests().flat_map(Manifest::layers).map(|layer| (layer.digest, layer.data_bytes)).collect();
    let sizes = layers.into_values().chain(manifests().map(|manifest| manifest.state.bytes));
    sizes.fold(0, u64::saturating_add)
}

fn cells(row: &Row, now: u64) -> [String; 9] {
    let dash = || "-".to_owned();
    let of = |show: &dyn Fn(&Manifest) -> String| row.manifest.as_ref().map_or_else(dash, show);
    [
        row.tag.to_string(),
        row.status.to_owned(),
        row.parent.as_ref().map_or_else(dash, ToString::to_string),
        of(&|manifest| bytes(manifest.stored_bytes())),
        of(&|manifest| manifest.memory.to_string()),
        of(&|manifest| manifest.vcpus.to_string()),
        row.created_unix.map_or_else(dash, |created| age(now.saturating_sub(created))),
        of(&|manifest| manifest.recipe.as_ref().map_or_else(dash, ToString::to_string)),
        of(&|manifest| manifest.interpreter.map_or_else(dash, |interpreter| interpreter.to_string())),
    ]
}

fn as_json(row: &Row) -> Value {
    let mut json = json!({
        "tag": row.tag,
        "status": row.status,
        "parent_tag": row.parent,
        "branched_from": row.branched_from,
        "created_at_unix": row.created_unix,
    });
    if let Some(warning) = &row.warning {
        json["warning"] = warning.as_str().into();
    }
    if let Some(manifest) = &row.manifest {
        json["id"] = manifest.id.as_str().into();
        json["recipe"] = json!(manifest.recipe);
        json["kernel"] = manifest.kernel.as_str().into();
        json["vcpus"] = json!(manifest.vcpus);
        json["memory_bytes"] = json!(manifest.memory);
        json["occupied_bytes"] = manifest.stored_bytes().into();
        json["interpreter"] = json!(manifest.interpreter);
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(tag: &str, parent: Option<&str>, layers: &[(u8, u64)]) -> Row {
        let layers = layers.iter().map(|(digit, data_bytes)| {
            json!({ "digest": digit.to_string().repeat(64), "file_bytes": 1, "data_bytes": data_bytes })
        });
        let manifest: Manifest = serde_json::from_value(json!({
            "format": 2, "tag": tag, "id": "x", "created_unix": 1000, "parent": null, "branched_from": null,
            "pause_us": null, "recipe": "python-numpy", "kernel": "6.1", "agent": "0.1.0", "vcpus": 2,
            "memory": 536_870_912_u64, "network": false, "interpreter": "python3",
            "state": { "digest": "0".repeat(64), "bytes": 1 << 20 }, "memory_layers": layers.collect::<Vec<_>>(),
            "disks": [],
        }))
        .unwrap();
        Row {
            tag: tag.parse().unwrap(),
            status: "ready",
            parent: parent.map(|parent| parent.parse().unwrap()),
            branched_from: None,
            created_unix: Some(1000),
            manifest: Some(manifest),
            warning: None,
        }
    }

    #[test]
    fn the_damaged_are_told_below_and_what_is_shared_counts_once() {
        let error = engine::StoreError::Failed { tag: "old".parse().unwrap(), reason: "no room".into() };
        let rows = [
            ready("pyagent", None, &[(1, 80 << 20)]),
            ready("more", Some("pyagent"), &[(1, 80 << 20), (2, 10 << 20)]),
            Row::from(("old".parse().unwrap(), Err(error))),
        ];
        let expected = "\
TAG      STATUS  PARENT     SIZE   MEMORY  VCPUS   AGE  RECIPE        WARM
pyagent  ready   -        81 MiB  512 MiB      2  60 s  python-numpy  python3
more     ready   pyagent  91 MiB  512 MiB      2  60 s  python-numpy  python3
old      failed  -             -        -      -     -  -             -
3 snapshots, 92 MiB
! old: snapshot `old` could not be written: no room; take it again, or forget it with `forkd rmi old`";
        assert_eq!(as_table(&rows, 1060), expected);
        assert_eq!(as_json(&rows[2])["status"], "failed");
        assert_eq!(as_json(&rows[1])["parent_tag"], "pyagent");
        assert_eq!(as_json(&rows[0])["interpreter"], "python3");
    }
}
