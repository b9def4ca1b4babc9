//! `forkd pause` and `forkd resume`: a sandbox stands still, and goes on.

use std::process::ExitCode;

use api::SandboxInfo;
use clap::Args;
use client::path;
use serde_json::json;

use crate::daemon::DaemonArgs;
use crate::{output, sandbox};

/// Which sandboxes shall stand still, or go on
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// Which ones
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// What shall become of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    Pause,
    Resume,
}

pub(crate) fn pause(args: &PauseArgs, pace: Pace) -> anyhow::Result<ExitCode> {
    let client = args.daemon.client()?;
    let verb = match pace {
        Pace::Pause => "pause",
        Pace::Resume => "resume",
    };
    let mut done = Vec::new();
    // All are found before the first is touched.
    let ids = args.ids.iter().map(|id| sandbox::find(&client, id)).collect::<anyhow::Result<Vec<_>>>()?;
    for id in &ids {
        let info: SandboxInfo = client.post(&path(&["sandboxes", id, verb], &[]), &json!({}))?;
        if !args.json {
            output::line(&format!("{} {}", info.id, info.status.as_str()))?;
        }
        done.push(info);
    }
    if args.json {
        output::line(&serde_json::to_string(&done)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
