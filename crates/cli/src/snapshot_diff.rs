//! `forkd snapshot-diff`: a snapshot, a command run in a fork of it, and what that changed as the next snapshot.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use engine::{
    BranchSpec, ChildOptions, Extent, ForkSpec, Lifetime, Results, Store, branch, fork as fork_children, kill,
};
use session::{ExecRequest, Stdio};
use types::{Dirs, Tag};

use crate::forward::{Forward, Need};
use crate::interrupts::Interrupts;
use crate::stream::{self, Ended};
use crate::table::bytes;
use crate::{joined, output, progress, seconds};

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
}

/// A command as words.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Words(Vec<String>);

fn parse_words(text: &str) -> Result<Words, String> {
    let words = shlex::split(text).ok_or("a quote is not closed")?;
    if words.is_empty() { Err("there is no command".into()) } else { Ok(Words(words)) }
}

pub(crate) fn snapshot_diff(args: &SnapshotDiffArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    let away = Forward { need: Need::Made, stdio: Stdio::Output, doing: Some("Building in the emulated host") };
    if let Some(code) = away.away(&dirs)? {
        return Ok(code);
    }
    // A name that is taken costs neither a sandbox nor the command.
    Store::new(&dirs).expect_free(&args.tag)?;
    let interrupts = Interrupts::catch()?;
    let progress = progress::reporter(false);
    let spec = ForkSpec {
        tag: args.from.clone(),
        children: vec![ChildOptions::default()],
        lifetime: Lifetime::Connection,
        results: Results::AllOrNothing,
        limit: args.timeout,
        cancel: Some(interrupts.cancel()),
    };
    let stage = progress.stage("Forking", None);
    let forked = fork_children(&spec, &dirs)?;
    drop(stage);
    let child = forked.children.iter().flatten().next().context("no sandbox")?.child.clone();
    let built = args.build(&child, &dirs, &interrupts);
    kill(&child)?;
    drop(forked);
    match interrupts.fatal() {
        Some(signal) => Ok(stream::killed_by(signal)),
        None => built,
    }
}

impl SnapshotDiffArgs {
    fn build(&self, child: &engine::Child, dirs: &Dirs, interrupts: &Interrupts) -> anyhow::Result<ExitCode> {
        let request = ExecRequest {
            argv: self.exec.0.clone(),
            stdio: Stdio::Output,
            timeout_ms: u64::try_from(self.exec_timeout_secs.as_millis()).ok(),
            ..ExecRequest::default()
        };
        match joined::exec(child, &request, interrupts)? {
            Ended::Code(0) => {}
            Ended::Code(code) => {
                eprintln!("forkd: the command ended with exit code {code}; no snapshot was taken");
                return Ok(code.into());
            }
            Ended::TimedOut => bail!("the command did not end within {} s", self.exec_timeout_secs.as_secs_f64()),
            Ended::ReaderLeft => return Ok(Ended::ReaderLeft.exit_code()),
        }
        let spec = BranchSpec { child: child.clone(), tag: self.tag.clone(), extent: Extent::Diff };
        let stage = progress::reporter(false).stage("Writing the snapshot", None);
        let kept = branch(spec, dirs)?.keep(Some(&interrupts.cancel()))?;
        drop(stage);
        output::line(&format!(
            "✓ snapshot {} over {}: {} of memory and {} of disk changed\nfork it with: forkd fork --tag {} -n 10",
            self.tag,
            self.from,
            bytes(kept.memory_bytes),
            bytes(kept.disk_bytes),
            self.tag,
        ))?;
        Ok(ExitCode::SUCCESS)
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
