//! `forkd ping`: whether a sandbox's agent answers.

use std::process::ExitCode;

use api::Pong;
use clap::Args;
use client::path;
use serde_json::json;

use crate::daemon::DaemonArgs;
use crate::{output, sandbox};

/// Asks a sandbox's agent for an answer and prints it as JSON
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  forkd ping sb-66f0a1b2-9c3d\n  forkd ping --child 66f0")]
pub(crate) struct PingArgs {
    /// Which sandbox
    #[arg(value_name = "ID", required_unless_present = "child", conflicts_with = "child")]
    id: Option<String>,
    /// Which sandbox, by another way to say it
    #[arg(long, value_name = "ID")]
    child: Option<String>,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn ping(args: &PingArgs) -> anyhow::Result<ExitCode> {
    let id = args.id.as_ref().or(args.child.as_ref()).map_or("", String::as_str);
    let client = args.daemon.running()?.ok_or_else(|| sandbox::none(id))?;
    let id = sandbox::find(&client, id)?;
    let pong: Pong = client.post(&path(&["sandboxes", &id, "ping"], &[]), &json!({}))?;
    let mut answer = serde_json::to_value(pong)?;
    answer["id"] = id.into();
    output::line(&answer.to_string())?;
    Ok(ExitCode::SUCCESS)
}
