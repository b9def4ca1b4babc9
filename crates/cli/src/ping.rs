//! `forkd ping`: whether a child's agent answers.

use std::process::ExitCode;

use clap::Args;
use engine::find;
use serde_json::json;
use types::Dirs;

use crate::forward::{Forward, Need};
use crate::{joined, output};

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
}

pub(crate) fn ping(args: &PingArgs) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env()?;
    if let Some(code) = Forward::printing(Need::Running).away(&dirs)? {
        return Ok(code);
    }
    let id = args.id.as_ref().or(args.child.as_ref()).map_or("", String::as_str);
    let child = find(id, &dirs)?;
    let pong = child.ping().map_err(|error| joined::explain(error.into(), &child))?;
    let answer = json!({
        "pong": true,
        "id": child.id(),
        "agent": pong.agent.agent,
        "kernel": pong.agent.kernel,
        "round_trip_us": u64::try_from(pong.round_trip.as_micros()).unwrap_or(u64::MAX),
    });
    output::line(&answer.to_string())?;
    Ok(ExitCode::SUCCESS)
}
