//! `forkd images`: the snapshots there are.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use engine::{Manifest, Store};
use serde_json::{Value, json};
use types::{Dirs, Tag};

use crate::errors::chain;
use crate::forward::{Forward, Need};
use crate::output;
use crate::table::{Column, age, bytes, table};

/// Lists the snapshots
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  forkd images\n  forkd images --json | jq -r '.[].tag'")]
pub(crate) struct ImagesArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// A tag, with its manifest or with what is wrong.
type Row = (Tag, Result<Manifest, String>);

pub(crate) fn images(args: &ImagesArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Kept).away(&dirs)? {
        return Ok(code);
    }
    let listed = Store::new(&dirs).list()?.into_iter();
    let rows: Vec<Row> = listed
        .map(|(tag, snapshot)| {
            let manifest = snapshot.map(|snapshot| snapshot.manifest().clone());
            (tag, manifest.map_err(|error| chain(&error.into())))
        })
        .collect();
    if args.json {
        output::line(&Value::Array(rows.iter().map(as_json).collect()).to_string())?;
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        output::line(&as_table(&rows, now))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_table(rows: &[Row], now: u64) -> String {
    let columns = [
        Column::Left("TAG"),
        Column::Right("SIZE"),
        Column::Right("MEMORY"),
        Column::Right("VCPUS"),
        Column::Right("AGE"),
        Column::Left("RECIPE"),
        Column::Left("WARM"),
    ];
    let whole = rows.iter().filter_map(|(tag, manifest)| Some((tag, manifest.as_ref().ok()?)));
    let cells: Vec<_> = whole.clone().map(|(tag, manifest)| cells(tag, manifest, now)).collect();
    let mut text = table(columns, &cells);
    let total = whole.map(|(_, manifest)| manifest.sizes.occupied).sum();
    let plural = if rows.len() == 1 { "" } else { "s" };
    text += &format!("\n{} snapshot{plural}, {}", rows.len(), bytes(total));
    for (tag, problem) in rows.iter().filter_map(|(tag, manifest)| Some((tag, manifest.as_ref().err()?))) {
        text += &format!("\n! {tag}: {problem}");
    }
    text
}

fn cells(tag: &Tag, manifest: &Manifest, now: u64) -> [String; 7] {
    let dash = || "-".to_owned();
    [
        tag.to_string(),
        bytes(manifest.sizes.occupied),
        manifest.memory.to_string(),
        manifest.vcpus.to_string(),
        age(now.saturating_sub(manifest.created_unix)),
        manifest.recipe.as_ref().map_or_else(dash, ToString::to_string),
        manifest.interpreter.map_or_else(dash, |interpreter| interpreter.to_string()),
    ]
}

fn as_json((tag, manifest): &Row) -> Value {
    match manifest {
        Ok(manifest) => json!({
            "tag": tag,
            "status": "ready",
            "id": manifest.id,
            "created_at_unix": manifest.created_unix,
            "recipe": manifest.recipe,
            "kernel": manifest.kernel,
            "vcpus": manifest.vcpus,
            "memory_bytes": manifest.memory,
            "occupied_bytes": manifest.sizes.occupied,
            "interpreter": manifest.interpreter,
        }),
        Err(problem) => json!({ "tag": tag, "status": "failed", "warning": problem }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        serde_json::from_value(json!({
            "format": 1, "tag": "pyagent", "id": "x", "created_unix": 1000, "parent": null, "recipe": "python-numpy",
            "kernel": "6.1", "agent": "0.1.0", "vcpus": 2, "memory": 536_870_912_u64, "images": [], "network": false,
            "interpreter": "python3", "sizes": {
                "state": 1, "memory": 1, "layers": [], "memory_used": 1, "disk_used": 1, "occupied": 90_000_000
            },
        }))
        .unwrap()
    }

    #[test]
    fn the_damaged_are_told_below_the_whole() {
        let rows =
            [("pyagent".parse().unwrap(), Ok(manifest())), ("old".parse().unwrap(), Err("it is damaged".to_owned()))];
        let expected = "\
TAG        SIZE   MEMORY  VCPUS   AGE  RECIPE        WARM
pyagent  85 MiB  512 MiB      2  60 s  python-numpy  python3
2 snapshots, 85 MiB
! old: it is damaged";
        assert_eq!(as_table(&rows, 1060), expected);
        assert_eq!(as_json(&rows[1])["status"], "failed");
        assert_eq!(as_json(&rows[0])["interpreter"], "python3");
    }
}
