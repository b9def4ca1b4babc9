//! `forkd snapshot-diff`: a snapshot, a command run in a fork of it, and what that changed as the next snapshot.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, ensure};
use api::{BranchMode, BranchSandbox, ExecRequest, ForkSnapshot, SnapshotInfo, SnapshotStatus};
use clap::Args;
use client::{Client, path};
use types::Tag;

use crate::attached::fork;
use crate::branch::take;
use crate::daemon::DaemonArgs;
use crate::interrupts::Interrupts;
use crate::output::Shown;
use crate::stream::{self, Ended};
use crate::table::bytes;
use crate::{joined, progress, seconds};

const EXAMPLES: &str = "\
Examples:
  forkd snapshot --recipe python-numpy --tag base
  forkd snapshot-diff --from base --tag base-extra --exec \"pip install --no-index /wheels/extra.whl\"
  forkd snapshot-diff --from base-extra --tag ready --exec \"sh -c 'touch /root/prepared'\"
  forkd fork --tag ready -n 100

The words of --exec are separated by blanks, with quotes as in a shell; no shell is started unless you name one.
Each snapshot stores only what its command changed.";

/// Runs a command in a fork of a snapshot and keeps what it changed as another snapshot
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SnapshotDiffArgs {
    /// The snapshot to build on
    #[arg(long, value_name = "TAG")]
    from: Tag,
    /// What the new one shall be called
    #[arg(long, value_name = "TAG")]
    tag: Tag,
    /// The command
    #[arg(long, value_name = "COMMAND", value_parser = parse_words)]
    exec: Words,
    /// How long the command may take
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds::parse)]
    exec_timeout_secs: Duration,
    /// How long the fork may take until it is ready
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds::parse)]
    timeout: Duration,
    /// Prints JSON, after what the command wrote
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// A command as words.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Words(Vec<String>);

fn parse_words(text: &str) -> Result<Words, String> {
    let words = shlex::split(text).ok_or("a quote is not closed")?;
    if words.is_empty() { Err("there is no command".into()) } else { Ok(Words(words)) }
}

pub(crate) fn snapshot_diff(args: &SnapshotDiffArgs) -> anyhow::Result<ExitCode> {
    let client = args.daemon.client()?;
    // A name that is taken costs neither a sandbox nor the command.
    let known: Vec<SnapshotInfo> = client.get(&path(&["snapshots"], &[]))?;
    let is_taken = |one: &SnapshotInfo| one.tag == args.tag.as_str() && one.status != SnapshotStatus::Failed;
    ensure!(!known.iter().any(is_taken), "snapshot `{}` exists; choose another tag, or remove it first", args.tag);
    let interrupts = Interrupts::catch()?;
    let stage = progress::reporter(false).stage("Forking", None);
    let one = ForkSnapshot { n: 1, timeout_secs: Some(args.timeout.as_secs_f64()), ..ForkSnapshot::default() };
    let forked = fork(&client, &args.from, one, &interrupts)?;
    drop(stage);
    let built = match &forked {
        Some(forked) => args.build(&client, forked.only()?, &interrupts),
        None => Ok(ExitCode::FAILURE),
    };
    let ended = forked.map_or(Ok(()), |forked| forked.end(&client));
    if let Some(signal) = interrupts.fatal() {
        return Ok(stream::killed_by(signal));
    }
    let built = built?;
    ended.map(|()| built)
}

impl SnapshotDiffArgs {
    fn build(&self, client: &Client, id: &str, interrupts: &Interrupts) -> anyhow::Result<ExitCode> {
        let request = ExecRequest {
            args: self.exec.0.clone(),
            timeout_secs: Some(self.exec_timeout_secs.as_secs_f64()),
            ..ExecRequest::default()
        };
        match joined::exec(client, id, &request, interrupts)? {
            Ended::Code(0) => {}
            Ended::Code(code) => {
                eprintln!("forkd: the command ended with exit code {code}; no snapshot was taken");
                return Ok(code.into());
            }
            Ended::TimedOut => bail!("the command did not end within {} s", self.exec_timeout_secs.as_secs_f64()),
            Ended::ReaderLeft => return Ok(Ended::ReaderLeft.exit_code()),
        }
        let asked = BranchSandbox {
            tag: Some(self.tag.to_string()),
            mode: Some(BranchMode::Diff),
            wait: true,
            // So that the one below is not removed by mistake.
            parent_tag: Some(self.from.to_string()),
            ..BranchSandbox::default()
        };
        let stage = progress::reporter(false).stage("Writing the snapshot", None);
        let kept = take(client, id, &asked)?;
        drop(stage);
        Shown::of(self.json).line(&kept, || self.told(&kept))?;
        Ok(ExitCode::SUCCESS)
    }

    fn told(&self, kept: &SnapshotInfo) -> String {
        let Self { from, tag, .. } = self;
        let [memory, disk] = [kept.memory_own_bytes, kept.disk_own_bytes].map(|own| bytes(own.unwrap_or_default()));
        format!(
            "✓ snapshot {tag} over {from}: {memory} of memory and {disk} of disk changed\n\
             fork it with: forkd fork --tag {tag} -n 10"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_keep_words_together_and_no_shell_is_meant() {
        let words = |text: &str| parse_words(text).map(|Words(words)| words);
        assert_eq!(words("sh -c 'a b; c'").unwrap(), ["sh", "-c", "a b; c"]);
        assert_eq!(words("echo $HOME \"x  y\"").unwrap(), ["echo", "$HOME", "x  y"]);
        assert!(words("echo 'x").unwrap_err().contains("quote"));
        words("  ").unwrap_err();
    }
}
