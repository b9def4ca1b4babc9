//! `forkd unpack`: a snapshot from one file.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use api::Unpacked;
use clap::Args;
use client::{Client, path};
use types::Tag;
use types::progress::Progress;

use crate::daemon::DaemonArgs;
use crate::watched::watched;
use crate::{output, progress};

const EXAMPLES: &str = "\
Examples:
  forkd unpack pyagent.forkd-snapshot.tar.zst
  forkd unpack pyagent.forkd-snapshot.tar.zst --tag mine
  ssh other forkd pack --tag pyagent -o - | forkd unpack -

A pack may come from anybody: whether it can be used here is known before anything is written, everything in it is \
checked, and what is refused changes nothing. Running what is in it is another matter; it runs in a VM.";

/// Takes a snapshot from a file that `forkd pack` wrote
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct UnpackArgs {
    /// The file; `-` is standard input
    #[arg(value_name = "FILE")]
    path: PathBuf,
    #[command(flatten)]
    how: HowArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// How it is unpacked.
#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line and stands by itself")]
pub(crate) struct HowArgs {
    /// What the snapshot shall be called here; those it descends from keep their names, or become TAG-1, TAG-2 and so on
    /// where others have them
    #[arg(long, value_name = "TAG")]
    tag: Option<Tag>,
    /// Takes the place of other snapshots that have the name of one in the pack
    #[arg(long)]
    force: bool,
    /// Shows no progress and no notices
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Prints what came of it as JSON
    #[arg(long)]
    json: bool,
}

impl HowArgs {
    /// Sends the pack to the daemon, and tells what came of it.
    pub(crate) fn send(&self, from: File, client: &Client, progress: &dyn Progress) -> anyhow::Result<()> {
        let tag = self.tag.iter().map(|tag| ("tag", tag.as_str()));
        let words: Vec<_> = tag.chain(self.force.then_some(("force", "true"))).collect();
        let unpacked: Vec<Unpacked> = watched(client, progress, |watch| {
            let mut query = words;
            query.extend(watch.map(|name| ("watch", name)));
            client.send_pack(&path(&["packs"], &query), from)
        })?;
        if self.json {
            return output::line(&serde_json::to_string(&unpacked)?);
        }
        unpacked.iter().try_for_each(|one| output::line(&told(one)))
    }
}

fn told(Unpacked { tag, is_new }: &Unpacked) -> String {
    if *is_new { format!("✓ {tag}") } else { format!("✓ {tag} was here already") }
}

pub(crate) fn unpack(args: &UnpackArgs) -> anyhow::Result<ExitCode> {
    let from = if args.path.as_os_str() == "-" {
        if io::stdin().is_terminal() {
            bail!("a pack does not come from a terminal; name a file, or use a pipe");
        }
        File::from(rustix::io::dup(rustix::stdio::stdin()).context("cannot read standard input")?)
    } else {
        File::open(&args.path).with_context(|| format!("cannot read {}", args.path.display()))?
    };
    args.how.send(from, &args.daemon.client()?, &*progress::reporter(args.how.quiet))?;
    Ok(ExitCode::SUCCESS)
}
