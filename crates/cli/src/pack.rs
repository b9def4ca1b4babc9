//! `forkd pack`: a snapshot in one file.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use client::{Client, path};
use serde_json::json;
use types::Tag;
use types::progress::Progress;

use crate::daemon::DaemonArgs;
use crate::output::{Raw, Shown};
use crate::table::bytes;
use crate::watched::watched;
use crate::{interrupted, progress};

/// How much crosses at once.
const CHUNK: usize = 128 << 10;

const EXAMPLES: &str = "\
Examples:
  forkd pack --tag pyagent
  forkd pack --tag pyagent -o - | ssh other forkd unpack -
  forkd pack --tag pyagent --description 'Python with numpy, warm' -o /srv/pyagent.tar.zst

The pack holds the snapshot, what it descends from, and the disk image: nothing else is needed on the other host but a \
CPU of the same maker that can do as much.";

/// Writes a snapshot and all it is made of into one file, for another host
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PackArgs {
    #[command(flatten)]
    what: WhatArgs,
    /// Where to; `-` is standard output [default: ./TAG.forkd-snapshot.tar.zst]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Shows no progress and no notices
    #[arg(long, short)]
    quiet: bool,
    /// Prints what was written as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// What is packed.
#[derive(Clone, Debug, Args)]
pub(crate) struct WhatArgs {
    /// Which snapshot
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Tag,
    /// A word on it, for who unpacks it
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// What it was built from, for who unpacks it [default: its recipe]
    #[arg(long, value_name = "TEXT")]
    base_image: Option<String>,
}

impl WhatArgs {
    /// Has the daemon pack it, and writes what comes; how much it was.
    pub(crate) fn write(&self, to: &mut impl Write, client: &Client, progress: &dyn Progress) -> anyhow::Result<u64> {
        let words = [("description", &self.description), ("base_image", &self.base_image)];
        let words: Vec<(&str, &str)> =
            words.into_iter().filter_map(|(name, word)| Some((name, &**word.as_ref()?))).collect();
        watched(client, progress, |watch| {
            let mut query = words;
            query.extend(watch.map(|name| ("watch", name)));
            copy(client.read(&path(&["snapshots", self.tag.as_str(), "pack"], &query))?, to)
        })
    }
}

/// All of it; how much it was.
fn copy(mut from: impl Read, to: &mut impl Write) -> anyhow::Result<u64> {
    let (mut chunk, mut written) = (vec![0; CHUNK], 0);
    loop {
        let count = from.read(&mut chunk).context("the pack broke off")?;
        if count == 0 {
            return Ok(written);
        }
        to.write_all(&chunk[..count])?;
        written += count as u64;
    }
}

pub(crate) fn pack(args: &PackArgs) -> anyhow::Result<ExitCode> {
    let default = || format!("./{}.forkd-snapshot.tar.zst", args.what.tag).into();
    let out = args.out.clone().unwrap_or_else(default);
    let progress = progress::reporter(args.quiet);
    if out.as_os_str() != "-" {
        to_file(args, &out, &*progress)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.json {
        bail!("standard output is the pack's; -o FILE leaves it to --json");
    }
    if io::stdout().is_terminal() {
        bail!("a pack is not to be read on a terminal; use -o FILE, or a pipe");
    }
    args.what.write(&mut Raw(rustix::stdio::stdout()), &args.daemon.keeping(&args.what.tag)?, &*progress)?;
    Ok(ExitCode::SUCCESS)
}

/// Whatever ends it early, the file is the old one or none.
fn to_file(args: &PackArgs, out: &Path, progress: &dyn Progress) -> anyhow::Result<()> {
    let dir = out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = || format!("cannot write {}", out.display());
    let mut file = tempfile::Builder::new()
        .prefix(".forkd-pack-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(dir)
        .with_context(failed)?;
    interrupted::remove_when(file.path())?;
    let written = args.what.write(file.as_file_mut(), &args.daemon.keeping(&args.what.tag)?, progress)?;
    file.as_file().sync_all().with_context(failed)?;
    file.persist(out).map_err(|error| error.error).with_context(failed)?;
    File::open(dir).and_then(|dir| dir.sync_all()).with_context(failed)?;
    let told = json!({ "tag": args.what.tag, "path": out, "bytes": written });
    Shown::of(args.json).line(&told, || format!("✓ {}: {}", out.display(), bytes(written)))
}
