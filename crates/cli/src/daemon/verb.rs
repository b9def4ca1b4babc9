//! `forkd daemon`: this computer's own daemon, by hand. Verbs start it by themselves, and it ends by itself.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use types::Dirs;

use super::own::{Own, Told};
use crate::output;
use crate::table::{age, now};

const EXAMPLES: &str = "\
Examples:
  forkd daemon status --json
  forkd daemon stop

Sandboxes live on without it; the next command that needs one starts it, and it finds them again.";

/// Controls the daemon that commands start when they need it
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct DaemonVerbArgs {
    #[command(subcommand)]
    verb: DaemonVerb,
}

#[derive(Debug, Subcommand)]
enum DaemonVerb {
    /// Tells whether it runs, and how it is
    Status {
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Ends it when what is under way has ended; sandboxes stay
    Stop,
}

pub(crate) fn daemon(args: &DaemonVerbArgs) -> anyhow::Result<ExitCode> {
    let own = Own::new(&Dirs::from_env()?)?;
    let running = own.look()?;
    match (&args.verb, running) {
        (DaemonVerb::Status { json: true }, None) => output::line(&json!({ "status": "stopped" }).to_string())?,
        (DaemonVerb::Status { json: false }, None) => output::line("stopped; it starts when it is needed")?,
        (DaemonVerb::Status { json }, Some(told)) => {
            let pid = own.process()?.as_raw_nonzero().get();
            output::line(&if *json { as_json(pid, &told).to_string() } else { described(pid, &told) })?;
        }
        (DaemonVerb::Stop, None) => output::line("it did not run")?,
        (DaemonVerb::Stop, Some(told)) => {
            let pid = own.process()?.as_raw_nonzero().get();
            own.stop()?;
            output::line(&ended(pid, &told))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What was ended. Who had started it wants to know that it was not one that comes back when it is needed.
fn ended(pid: i32, told: &Told) -> String {
    let was_started = told.as_ref().is_some_and(|info| info.idle_secs.is_none());
    let whose = if was_started { ", a `forkd serve` that somebody had started" } else { "" };
    format!("ended (process {pid}{whose}); sandboxes live on")
}

/// One line for a person.
fn described(pid: i32, told: &Told) -> String {
    let Some(info) = told else { return format!("running (process {pid}), of another version") };
    let ends = match info.idle_secs {
        Some(secs) => format!("it ends by itself when nobody has needed it for {}", age(secs)),
        None => "somebody started it, and ends it".into(),
    };
    format!(
        "running for {}: version {}, {} sandboxes, {} other clients (process {pid}); {ends}",
        age(now().saturating_sub(info.started_at_unix)),
        info.version,
        info.sandboxes,
        info.clients,
    )
}

fn as_json(pid: i32, told: &Told) -> Value {
    let mut value = json!({ "status": "running", "pid": pid });
    let info = serde_json::to_value(told).unwrap_or_default();
    if let (Some(all), Some(more)) = (value.as_object_mut(), info.as_object()) {
        all.extend(more.clone());
    }
    value
}
