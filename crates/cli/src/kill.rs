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
  forkd kill --child 66f0
  forkd kill --tag pyagent
  forkd kill --all

The beginning of an id will do, as long as it could mean only one.";

/// Ends sandboxes at once and throws away all they had
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct KillArgs {
    /// Which ones
    #[arg(value_name = "ID", required_unless_present_any = ["all", "tag", "child"])]
    ids: Vec<String>,
    /// Which one, by another way to say it; repeatable
    #[arg(long, value_name = "ID")]
    child: Vec<String>,
    /// Every one
    #[arg(long, conflicts_with_all = ["ids", "child", "tag"])]
    all: bool,
    /// All of this snapshot
    #[arg(long, value_name = "TAG", conflicts_with_all = ["ids", "child"])]
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
        None => args.ids.iter().chain(&args.child).map(|id| find(id, &dirs)).collect::<Result<Vec<Child>, _>>()?,
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        kill: KillArgs,
    }

    fn parse(words: &[&str]) -> Result<KillArgs, clap::Error> {
        Line::try_parse_from(std::iter::once("kill").chain(words.iter().copied())).map(|line| line.kill)
    }

    #[test]
    fn sandboxes_are_named_in_either_way_or_all_at_once() {
        let args = parse(&["sb-1", "sb-2", "--child", "sb-3"]).unwrap();
        assert_eq!((args.ids, args.child), (vec!["sb-1".into(), "sb-2".into()], vec!["sb-3".into()]));
        assert_eq!(parse(&["--child", "sb-3"]).unwrap().child, ["sb-3"]);
        for bad in [&[][..], &["--all", "--tag", "t"], &["--all", "--child", "x"], &["--tag", "t", "--child", "x"]] {
            assert_eq!(parse(bad).unwrap_err().exit_code(), 2, "{bad:?}");
        }
    }
}
