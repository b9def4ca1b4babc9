//! `forkd rmi`: removes snapshots.

use std::process::ExitCode;

use clap::Args;
use engine::{Removal, remove_snapshot};
use types::{Dirs, Tag};

use crate::forward::{Forward, Need};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  forkd rmi pyagent
  forkd rmi one two
  forkd rmi --cascade base         and all that is made of it
  forkd rmi --force base           what is made of it stays, whole as it is";

/// Removes snapshots and ends their templates; sandboxes that run go on
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RmiArgs {
    /// Which ones
    #[arg(value_name = "TAG", required = true)]
    tags: Vec<Tag>,
    /// Removes the snapshots that are made of them, too
    #[arg(long, conflicts_with = "force")]
    cascade: bool,
    /// Removes them also when others are made of them, which stay
    #[arg(long)]
    force: bool,
}

pub(crate) fn rmi(args: &RmiArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Kept).away(&dirs)? {
        return Ok(code);
    }
    let removal = match (args.cascade, args.force) {
        (true, _) => Removal::Cascade,
        (_, true) => Removal::Force,
        _ => Removal::Plain,
    };
    let mut gone: Vec<Tag> = Vec::new();
    for tag in &args.tags {
        // One that went with another is what was asked for.
        if gone.contains(tag) {
            continue;
        }
        let removed = remove_snapshot(tag, removal, &dirs)?;
        removed.iter().try_for_each(|tag| output::line(tag.as_str()))?;
        gone.extend(removed);
    }
    Ok(ExitCode::SUCCESS)
}
