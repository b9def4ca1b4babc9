//! `forkd gc`: what nobody needs any more.

use std::process::ExitCode;

use clap::Args;
use engine::{Collected, Garbage, Store, sweep_templates};
use types::Dirs;

use crate::forward::{Forward, Need};
use crate::output;
use crate::table::bytes;

const EXAMPLES: &str = "\
Examples:
  forkd gc                 tells what would be removed
  forkd gc --yes           removes it

Garbage is what a killed forkd left: half-written snapshots with their processes, and layers that no snapshot needs.";

/// Removes what no snapshot needs; without --yes only tells what it is
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct GcArgs {
    /// Removes it
    #[arg(long, short)]
    yes: bool,
}

pub(crate) fn gc(args: &GcArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Kept).away(&dirs)? {
        return Ok(code);
    }
    let garbage = if args.yes { Garbage::Remove } else { Garbage::Count };
    if args.yes {
        let ended = sweep_templates(&dirs)?;
        if ended > 0 {
            output::line(&format!("✓ ended the templates of {ended} branches that nobody keeps any more"))?;
        }
    }
    output::line(&as_text(&Store::new(&dirs).gc(garbage)?, garbage))?;
    Ok(ExitCode::SUCCESS)
}

fn as_text(collected: &Collected, garbage: Garbage) -> String {
    if *collected == Collected::default() {
        return "nothing to remove".into();
    }
    let layers =
        collected.layers.iter().map(|(digest, size)| format!("layer {:.12}  {}", digest.to_string(), bytes(*size)));
    let staging = collected.staging.iter().map(|(name, size)| format!("unfinished {name}  {}", bytes(*size)));
    let count = collected.layers.len() + collected.staging.len();
    let things = if count == 1 { "thing" } else { "things" };
    let sum = bytes(collected.bytes());
    let last = match garbage {
        Garbage::Count => format!("{count} {things}, {sum}; remove with: forkd gc --yes"),
        Garbage::Remove => format!("✓ removed {count} {things}, {sum}"),
    };
    layers.chain(staging).chain([last]).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_is_told_before_and_after() {
        let nothing = Collected::default();
        assert_eq!(as_text(&nothing, Garbage::Remove), "nothing to remove");
        let digest = "ab".repeat(32).parse().unwrap();
        let some = Collected { layers: vec![(digest, 8192)], staging: vec![(".staging-1".into(), 4096)] };
        let expected = "\
layer abababababab  8192 B
unfinished .staging-1  4096 B
2 things, 12 KiB; remove with: forkd gc --yes";
        assert_eq!(as_text(&some, Garbage::Count), expected);
        assert!(as_text(&some, Garbage::Remove).ends_with("✓ removed 2 things, 12 KiB"));
    }
}
