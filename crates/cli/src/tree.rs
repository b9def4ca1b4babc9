//! `forkd tree`: which snapshot is made of which, and what runs of each.

mod draw;

use std::process::ExitCode;

use api::TreeNode;
use clap::Args;
use client::path;

use crate::daemon::DaemonArgs;
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
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn tree(args: &TreeArgs) -> anyhow::Result<ExitCode> {
    let nodes: Vec<TreeNode> = match args.daemon.looking()? {
        Some(client) => client.get(&path(&["tree"], &[]))?,
        None => Vec::new(),
    };
    if args.json {
        output::line(&serde_json::to_string(&nodes)?)?;
    } else {
        output::line(&draw::as_table(&nodes, now()))?;
    }
    Ok(ExitCode::SUCCESS)
}
