//! `forkd kill`: ends sandboxes.

use std::process::ExitCode;

use anyhow::anyhow;
use api::SandboxInfo;
use clap::Args;
use client::{Client, path};
use types::Tag;

use crate::attached::end_all;
use crate::daemon::DaemonArgs;
use crate::{output, sandbox};

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
    /// Prints those that were ended as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn kill(args: &KillArgs) -> anyhow::Result<ExitCode> {
    let Some(client) = args.daemon.running()? else {
        return match args.ids.iter().chain(&args.child).next() {
            Some(id) => Err(sandbox::none(id)),
            None => args.tell(&[]).map(|()| ExitCode::SUCCESS),
        };
    };
    // All are found before the first is ended: a slip of the pen ends nobody.
    let ids = args.meant(&client)?;
    let mut gone = Vec::new();
    for (id, ended) in ids.iter().zip(end_all(&client, &ids)) {
        match ended {
            Ok(()) => gone.push(id.as_str()),
            Err(error) => eprintln!("forkd: {}", crate::errors::chain(&error.into())),
        }
    }
    args.tell(&gone)?;
    match ids.len() - gone.len() {
        0 => Ok(ExitCode::SUCCESS),
        failed => Err(anyhow!("{failed} of {} sandboxes were not ended", ids.len())),
    }
}

impl KillArgs {
    /// A line for each of them, or all in one.
    fn tell(&self, gone: &[&str]) -> anyhow::Result<()> {
        if self.json {
            return output::line(&serde_json::to_string(gone)?);
        }
        gone.iter().try_for_each(|id| output::line(id))
    }

    fn meant(&self, client: &Client) -> anyhow::Result<Vec<String>> {
        let tag = self.tag.as_ref().map(|tag| ("snapshot_tag", tag.as_str()));
        if tag.is_none() && !self.all {
            return self.ids.iter().chain(&self.child).map(|id| sandbox::find(client, id)).collect();
        }
        let found: Vec<SandboxInfo> = client.get(&path(&["sandboxes"], &tag.into_iter().collect::<Vec<_>>()))?;
        Ok(found.into_iter().map(|one| one.id).collect())
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
