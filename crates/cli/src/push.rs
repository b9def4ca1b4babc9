//! `forkd push`: a snapshot to a server.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use engine::place::{Place, place};
use pack::{Client, upload};
use types::Dirs;

use crate::interrupts::Interrupts;
use crate::pack::WhatArgs;
use crate::unpack::finished;
use crate::{forward, output, progress};

const EXAMPLES: &str = "\
Examples:
  forkd push 'https://bucket.example.org/pyagent.tar.zst?signature=...' --tag pyagent

The server gets one PUT request with the whole pack, as addresses that were signed beforehand want it.";

/// Packs a snapshot and uploads it
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PushArgs {
    /// Where to
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    what: WhatArgs,
    /// Shows no progress and no notices
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn push(args: &PushArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    let progress = progress::reporter(args.quiet);
    if let (Place::Machine { why }, false) = (place(&dirs)?, args.quiet) {
        forward::notice(&why);
    }
    let interrupts = Interrupts::catch()?;
    let done = args.pushed(&dirs, &*progress, &interrupts);
    finished(&interrupts, done)
}

impl PushArgs {
    fn pushed(
        &self,
        dirs: &Dirs,
        progress: &dyn types::progress::Progress,
        interrupts: &Interrupts,
    ) -> anyhow::Result<bool> {
        // The length must be known first. Without a name, the file is gone with us.
        let failed = || format!("cannot keep the pack in {}", dirs.cache.display());
        std::fs::create_dir_all(&dirs.cache).with_context(failed)?;
        let mut file = tempfile::tempfile_in(&dirs.cache).with_context(failed)?;
        if self.what.write(&mut file, dirs, progress, interrupts)?.is_none() {
            return Ok(false);
        }
        let cancelled = || interrupts.fatal().is_some();
        upload(&Client::new(), &self.url, &file, progress, &cancelled)?;
        output::line(&format!("✓ {}", self.what.tag))?;
        Ok(true)
    }
}
