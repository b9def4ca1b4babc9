//! `forkd snapshot-compact`: a chain of layers made one.

use std::process::ExitCode;

use api::{CompactSnapshot, SnapshotDetail, SnapshotInfo};
use clap::Args;
use client::path;
use types::Tag;

use crate::daemon::DaemonArgs;
use crate::output::Shown;
use crate::progress;
use crate::table::bytes;

const EXAMPLES: &str = "\
Examples:
  forkd snapshot-compact --from deep --to flat
  forkd rmi --force deep

A snapshot that was made of another lies in layers over it, up to 56 of them. The new one has the same contents in one
layer and needs no other; what it is made of stays as it is.";

/// Makes a snapshot of the same contents that needs no other
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SnapshotCompactArgs {
    /// Of which one
    #[arg(long, value_name = "TAG")]
    from: Tag,
    /// What the new one shall be called
    #[arg(long, value_name = "TAG")]
    to: Tag,
    /// Shows no progress
    #[arg(long, short)]
    quiet: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn snapshot_compact(args: &SnapshotCompactArgs) -> anyhow::Result<ExitCode> {
    let client = args.daemon.keeping(&args.from)?;
    let detail = |tag: &Tag| client.get::<SnapshotDetail>(&path(&["snapshots", tag.as_str(), "info"], &[]));
    let before = detail(&args.from)?.chain_depth + 1;
    let wanted = CompactSnapshot { to: args.to.to_string() };
    let progress = progress::reporter(args.quiet);
    let to = path(&["snapshots", args.from.as_str(), "compact"], &[]);
    let _made: SnapshotInfo = client.work(&to, &wanted, progress::watch(&*progress))?;
    let made = detail(&args.to)?;
    Shown::of(args.json).line(&made, || {
        let [memory, disk] = [made.memory_physical_bytes, made.disk_physical_bytes].map(bytes);
        format!(
            "✓ snapshot {}: one layer of memory instead of {before}, {memory}; the disks have {disk} over their images",
            args.to
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
