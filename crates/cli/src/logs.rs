//! `forkd logs`: what a sandbox's kernel and programs said on its console.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Args;
use client::path;

use crate::daemon::DaemonArgs;
use crate::output::{Raw, reader_left};
use crate::sandbox;

const EXAMPLES: &str = "\
Examples:
  forkd logs sb-66f0a1b2-9c3d
  forkd logs --tail 20 -f sb-66f0a1b2-9c3d";

/// Shows a sandbox's console
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct LogsArgs {
    /// Which sandbox
    id: String,
    /// Goes on as more comes, until the sandbox ends
    #[arg(long, short)]
    follow: bool,
    /// Begins with so many of the last lines
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn logs(args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let tail = args.tail.map(|lines| lines.to_string());
    let mut query = vec![("follow", if args.follow { "true" } else { "false" })];
    query.extend(tail.as_deref().map(|lines| ("tail", lines)));
    let client = args.daemon.running()?.ok_or_else(|| sandbox::none(&args.id))?;
    let id = sandbox::find(&client, &args.id)?;
    let mut console = client.read(&path(&["sandboxes", &id, "console"], &query))?;
    let mut out = Raw(rustix::stdio::stdout());
    match io::copy(&mut console, &mut out).and_then(|_| out.flush()) {
        Err(error) if !reader_left(&error) => Err(anyhow::Error::new(error).context("the console broke off")),
        _ => Ok(ExitCode::SUCCESS),
    }
}
