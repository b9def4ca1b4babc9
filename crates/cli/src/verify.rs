//! `forkd verify`: whether all that is stored is what was written.

use std::process::ExitCode;

use api::{Verified, VerifySnapshots};
use clap::Args;
use client::path;
use types::Tag;

use crate::daemon::DaemonArgs;
use crate::output::Shown;
use crate::progress;
use crate::table::bytes;

const EXAMPLES: &str = "\
Examples:
  forkd verify                 all snapshots
  forkd verify pyagent         one, and what it is made of

Every byte in the store is read. A snapshot that was booted here also needs the disk image it was booted from, in the cache; \
of that, only the length and the time of its last change are compared. The exit code is 1 when something is damaged.";

/// Reads snapshots and compares them with what was written
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    /// Which ones; all when none is named
    #[arg(value_name = "TAG")]
    tags: Vec<Tag>,
    /// Shows no progress
    #[arg(long, short)]
    quiet: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let client = args.daemon.client()?;
    let wanted = VerifySnapshots { tags: args.tags.iter().map(ToString::to_string).collect() };
    let progress = progress::reporter(args.quiet);
    let verified: Verified = client.work(&path(&["store", "verify"], &[]), &wanted, progress::watch(&*progress))?;
    let is_whole = verified.findings.is_empty();
    Shown::of(args.json).line(&verified, || as_text(&verified))?;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_text(verified: &Verified) -> String {
    let Verified { snapshots, layers, bytes: read, findings } = verified;
    let mark = if findings.is_empty() { "✓ " } else { "" };
    let wrong = match findings.len() {
        0 => "all is as it was written".to_owned(),
        1 => "1 thing is wrong".to_owned(),
        count => format!("{count} things are wrong"),
    };
    let problems = findings.iter().map(|finding| format!("! {}", finding.problem));
    let last = format!("{mark}{snapshots} snapshots, {layers} layers, {} read: {wrong}", bytes(*read));
    problems.chain([last]).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use api::Finding;

    use super::*;

    #[test]
    fn damage_is_told_first_and_counted_last() {
        let whole = Verified { snapshots: 2, layers: 3, bytes: 4096, findings: Vec::new() };
        assert_eq!(as_text(&whole), "✓ 2 snapshots, 3 layers, 4096 B read: all is as it was written");
        let finding = Finding { tag: "a".into(), problem: "snapshot `a` is damaged".into() };
        let text = as_text(&Verified { findings: vec![finding], bytes: 0, ..whole });
        assert!(text.starts_with("! snapshot `a` is damaged\n"), "{text}");
        assert!(text.ends_with("0 B read: 1 thing is wrong"), "{text}");
    }
}
