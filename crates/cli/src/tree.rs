//! `forkd tree`: which snapshot is made of which, and what runs of each.

mod draw;

use std::process::ExitCode;

use clap::Args;
use engine::Lineage;
use serde_json::{Value, json};
use types::Dirs;

use crate::forward::{Forward, Need};
use crate::output;
use crate::table::now;

/// Draws which snapshot is made of which, with the sandboxes that run below the one they were forked from
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  forkd tree\n  forkd tree --json | jq -r '.[] | select(.template_running).tag'"
)]
pub(crate) struct TreeArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn tree(args: &TreeArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Kept).away(&dirs)? {
        return Ok(code);
    }
    let lineage = Lineage::now(&dirs)?;
    if args.json {
        output::line(&as_json(&lineage).to_string())?;
    } else {
        output::line(&draw::as_table(&lineage, now()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The snapshots in the order in which they are drawn, each with how deep it is.
fn as_json(lineage: &Lineage) -> Value {
    let snapshots = lineage.in_order().into_iter().map(|(node, depth)| {
        let sandboxes = node.sandboxes.iter().map(|it| json!({ "id": it.id, "created_at_unix": it.created_unix }));
        json!({
            "tag": node.tag,
            "status": node.status,
            "depth": depth,
            "parent_tag": node.parent.as_ref().map(|parent| &parent.tag),
            "created_at_unix": node.created_unix,
            "own_bytes": node.own_bytes,
            "template_running": node.has_template,
            "warning": node.warning,
            "sandboxes": sandboxes.collect::<Vec<_>>(),
        })
    });
    Value::Array(snapshots.collect())
}
