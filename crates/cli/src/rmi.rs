//! `forkd rmi`: removes snapshots.

use std::process::ExitCode;

use api::Removed;
use clap::Args;
use client::{Client, path};
use types::Tag;

use crate::daemon::DaemonArgs;
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
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line and stands by itself")]
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
    /// Prints those that were removed as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn rmi(args: &RmiArgs) -> anyhow::Result<ExitCode> {
    let client = args.daemon.keeping(&args.tags[0])?;
    let how: &[(&str, &str)] = match (args.cascade, args.force) {
        (true, _) => &[("cascade", "true")],
        (_, true) => &[("force", "true")],
        _ => &[],
    };
    let mut gone: Vec<String> = Vec::new();
    let removed = remove(&client, &args.tags, how, &mut gone);
    // Also when one of them could not be: the others are gone.
    if args.json {
        output::line(&serde_json::to_string(&gone)?)?;
    } else {
        gone.iter().try_for_each(|tag| output::line(tag))?;
    }
    removed.map(|()| ExitCode::SUCCESS)
}

fn remove(client: &Client, tags: &[Tag], how: &[(&str, &str)], gone: &mut Vec<String>) -> anyhow::Result<()> {
    for tag in tags {
        // One that went with another is what was asked for.
        if gone.iter().any(|gone| gone == tag.as_str()) {
            continue;
        }
        let Removed { removed } = client.remove(&path(&["snapshots", tag.as_str()], how))?;
        gone.extend(removed);
    }
    Ok(())
}
