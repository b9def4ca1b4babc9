//! `forkd snapshot-compact`: a chain of layers made one.

use std::process::ExitCode;

use clap::Args;
use engine::Store;
use session::Stdio;
use types::{Dirs, Tag};

use crate::forward::{Forward, Need};
use crate::table::bytes;
use crate::{output, progress};

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
}

pub(crate) fn snapshot_compact(args: &SnapshotCompactArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    let doing = (!args.quiet).then_some("Merging layers in the emulated host");
    let forward = Forward { need: Need::Kept, stdio: Stdio::Output, doing };
    if let Some(code) = forward.away(&dirs)? {
        return Ok(code);
    }
    let store = Store::new(&dirs);
    let before = store.get(&args.from)?.manifest().memory_layers.len();
    let made = store.compact(&args.from, &args.to, &*progress::reporter(args.quiet))?;
    let manifest = made.manifest();
    output::line(&format!(
        "✓ snapshot {}: one layer of memory instead of {before}, {}; the disks have {} over their images",
        args.to,
        bytes(manifest.memory_stored().chain),
        bytes(manifest.disk_stored().chain),
    ))?;
    Ok(ExitCode::SUCCESS)
}
