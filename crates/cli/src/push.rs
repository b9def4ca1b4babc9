//! `forkd push`: a snapshot to a server.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use pack::{Client, upload};
use serde_json::json;
use types::Dirs;

use crate::daemon::DaemonArgs;
use crate::output::Shown;
use crate::pack::WhatArgs;
use crate::progress;

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
    /// Prints what was uploaded as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn push(args: &PushArgs) -> anyhow::Result<ExitCode> {
    let (dirs, progress) = (Dirs::from_env()?, progress::reporter(args.quiet));
    // The length must be known first. Without a name, the file is gone with us.
    let failed = || format!("cannot keep the pack in {}", dirs.cache.display());
    std::fs::create_dir_all(&dirs.cache).with_context(failed)?;
    let mut file = tempfile::tempfile_in(&dirs.cache).with_context(failed)?;
    let written = args.what.write(&mut file, &args.daemon.keeping(&args.what.tag)?, &*progress)?;
    upload(&Client::new(), &args.url, &file, &*progress, &|| false)?;
    // Without the address, which may be signed.
    let told = json!({ "tag": args.what.tag, "bytes": written });
    Shown::of(args.json).line(&told, || format!("✓ {}", args.what.tag))?;
    Ok(ExitCode::SUCCESS)
}
