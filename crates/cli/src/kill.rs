//! `forkd kill`: ends children.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use engine::{Child, find, kill_many, list};
use types::{Dirs, Tag};

use crate::forward::{Forward, Need};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  forkd kill sb-66f0a1b2-9c3d
  forkd kill --tag pyagent
  forkd kill --all

The beginning of an id will do, as long as it could mean only one.";

/// Ends sandboxes at once and throws away all they had
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct KillArgs {
    /// Which ones
    #[arg(value_name = "ID", required_unless_present_any = ["all", "tag"])]
    ids: Vec<String>,
    /// Every one
    #[arg(long, conflicts_with_all = ["ids", "tag"])]
    all: bool,
    /// All of this snapshot
    #[arg(long, value_name = "TAG", conflicts_with = "ids")]
    tag: Option<Tag>,
}

pub(crate) fn kill(args: &KillArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Running).away(&dirs)? {
        return Ok(code);
    }
    // All are found before the first is ended: a slip of the pen ends nobody.
    let children = match &args.tag {
        Some(tag) => list(&dirs)?.into_iter().filter(|child| child.tag() == tag).collect(),
        None if args.all => list(&dirs)?,
        None => args.ids.iter().map(|id| find(id, &dirs)).collect::<Result<Vec<Child>, _>>()?,
    };
    let mut failed = 0;
    for (child, killed) in children.iter().zip(kill_many(&children)) {
        match killed {
            Ok(()) => output::line(child.id())?,
            Err(error) => {
                failed += 1;
                eprintln!("forkd: {}", crate::errors::chain(&error.into()));
            }
        }
    }
    engine::sweep(&dirs)?;
    if failed > 0 {
        Err(anyhow!("{failed} of {} sandboxes may still run", children.len()))
    } else {
        Ok(ExitCode::SUCCESS)
    }
}
