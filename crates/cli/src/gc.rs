//! `forkd gc`: what nobody needs any more.

use std::process::ExitCode;

use api::{Garbage, Leftover};
use clap::Args;
use client::path;

use crate::daemon::DaemonArgs;
use crate::output::{self, Shown};
use crate::table::bytes;

const EXAMPLES: &str = "\
Examples:
  forkd gc                 tells what would be removed
  forkd gc --yes           removes it; `forkd cleanup` is another name of it

Garbage is what a killed forkd left: half-written snapshots with their processes, layers that no snapshot needs,\nand downloads that nobody went on with.";

/// Removes what no snapshot needs; without --yes only tells what it is
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct GcArgs {
    /// Removes it
    #[arg(long, short)]
    yes: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn gc(args: &GcArgs) -> anyhow::Result<ExitCode> {
    let garbage = path(&["store", "garbage"], &[]);
    let found: Garbage = match args.daemon.looking()? {
        Some(client) if args.yes => client.remove(&garbage)?,
        Some(client) => client.get(&garbage)?,
        None => Garbage::default(),
    };
    if found.ended_templates > 0 && !args.json {
        let ended = found.ended_templates;
        output::line(&format!("✓ ended the templates of {ended} branches that nobody keeps any more"))?;
    }
    Shown::of(args.json).line(&found, || as_text(&found, args.yes))?;
    Ok(ExitCode::SUCCESS)
}

fn as_text(garbage: &Garbage, is_removed: bool) -> String {
    let kinds = [("layer", &garbage.layers), ("unfinished", &garbage.unfinished), ("download", &garbage.downloads)];
    let line = |kind: &str, one: &Leftover| {
        // A layer's name is a digest, of which the beginning is enough.
        let name = if kind == "layer" { one.name.chars().take(12).collect() } else { one.name.clone() };
        format!("{kind} {name}  {}", bytes(one.bytes))
    };
    let mut lines: Vec<String> =
        kinds.into_iter().flat_map(|(kind, all)| all.iter().map(move |one| line(kind, one))).collect();
    let (count, sum) = (lines.len(), bytes(garbage.bytes));
    let things = if count == 1 { "thing" } else { "things" };
    lines.push(match (count, is_removed) {
        (0, _) => "nothing to remove".into(),
        (_, false) => format!("{count} {things}, {sum}; remove with: forkd gc --yes"),
        (_, true) => format!("✓ removed {count} {things}, {sum}"),
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_is_told_before_and_after() {
        assert_eq!(as_text(&Garbage::default(), true), "nothing to remove");
        let some = |name: &str, bytes| vec![Leftover { name: name.into(), bytes }];
        let garbage = Garbage {
            layers: some(&"ab".repeat(32), 8192),
            unfinished: some(".staging-1", 4096),
            downloads: some("12.part", 4096),
            bytes: 16384,
            ended_templates: 0,
        };
        let expected = "\
layer abababababab  8192 B
unfinished .staging-1  4096 B
download 12.part  4096 B
3 things, 16 KiB; remove with: forkd gc --yes";
        assert_eq!(as_text(&garbage, false), expected);
        assert!(as_text(&garbage, true).ends_with("✓ removed 3 things, 16 KiB"));
    }
}
