//! `forkd rmi`: removes snapshots.

use std::process::ExitCode;

use clap::Args;
use engine::remove_snapshot;
use types::{Dirs, Tag};

use crate::forward::{Forward, Need};
use crate::output;

/// Removes snapshots and ends their templates; sandboxes that run go on
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  forkd rmi pyagent\n  forkd rmi one two")]
pub(crate) struct RmiArgs {
    /// Which ones
    #[arg(value_name = "TAG", required = true)]
    tags: Vec<Tag>,
}

pub(crate) fn rmi(args: &RmiArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Kept).away(&dirs)? {
        return Ok(code);
    }
    for tag in &args.tags {
        remove_snapshot(tag, &dirs)?;
        output::line(tag.as_str())?;
    }
    Ok(ExitCode::SUCCESS)
}
