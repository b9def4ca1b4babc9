//! `forkd ping`: whether a sandbox's agent answers.

use std::process::ExitCode;

use api::Pong;
use clap::Args;
use client::path;
use serde_json::json;

use crate::daemon::DaemonArgs;
use crate::target::{self, Asked};
use crate::{output, sandbox};

/// Asks a sandbox's agent for an answer and prints it as JSON
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  forkd ping sb-66f0a1b2-9c3d\n  forkd ping --child forkd-child-7\n  forkd ping --target 10.42.0.2:8888"
)]
pub(crate) struct PingArgs {
    /// Which sandbox
    #[arg(value_name = "ID", conflicts_with_all = ["child", "target"])]
    id: Option<String>,
    /// Which sandbox, by its id or its network namespace
    #[arg(long, value_name = "ID|NETNS")]
    child: Option<String>,
    /// Whoever answers there, in this network or in the namespace --child [default without a sandbox: 10.42.0.2:8888]
    #[arg(long, value_name = "HOST:PORT")]
    target: Option<String>,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn ping(args: &PingArgs) -> anyhow::Result<ExitCode> {
    let id = match target::asked(args.id.as_deref(), args.child.as_deref(), args.target.as_deref()) {
        Asked::Sandbox(id) => id,
        Asked::Address(address) => return address.ping(),
    };
    let client = args.daemon.running()?.ok_or_else(|| sandbox::none(id))?;
    let id = sandbox::find(&client, id)?;
    let pong: Pong = client.post(&path(&["sandboxes", &id, "ping"], &[]), &json!({}))?;
    let mut answer = serde_json::to_value(pong)?;
    answer["id"] = id.into();
    output::line(&answer.to_string())?;
    Ok(ExitCode::SUCCESS)
}
