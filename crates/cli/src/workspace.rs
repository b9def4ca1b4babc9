//! `forkd workspace`: sandboxes whose state outlives them.

use std::process::ExitCode;

use api::{CreateWorkspace, SuspendWorkspace, WorkspaceInfo};
use clap::{Args, Subcommand};
use client::path;
use serde_json::json;

use crate::daemon::DaemonArgs;
use crate::limits::LimitArgs;
use crate::run::parse_variable;
use crate::table::{Column, age, now, table};
use crate::{output, progress};

const EXAMPLES: &str = "\
Examples:
  forkd workspace create mine --snapshot pyagent
  forkd workspace suspend mine        memory, disk and processes are kept; nothing runs
  forkd workspace resume mine         and go on where they were, also after a restart of this computer
  forkd workspace list
  forkd workspace delete mine";

/// Keeps sandboxes over pauses and restarts, under a name
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct WorkspaceArgs {
    #[command(subcommand)]
    verb: WorkspaceVerb,
}

#[derive(Debug, Subcommand)]
enum WorkspaceVerb {
    /// Makes one, and has it run
    Create(CreateArgs),
    /// Keeps all of it, and has it run no longer
    Suspend(SuspendArgs),
    /// Has it run again from where it was
    Resume(NameArgs),
    /// Lists them
    List(ListArgs),
    /// Removes one, its state and its sandbox
    Delete(NameArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// What it shall be called
    name: String,
    /// The snapshot it begins with
    #[arg(long, value_name = "TAG")]
    snapshot: String,
    #[command(flatten)]
    limits: LimitArgs,
    /// Not offered
    #[arg(long, hide = true)]
    per_child_netns: bool,
    /// Sets an environment variable in it; repeatable
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

#[derive(Debug, Args)]
struct SuspendArgs {
    #[command(flatten)]
    name: NameArgs,
    /// Stores only what differs; so it is done in any case
    #[arg(long, hide = true)]
    diff: bool,
}

#[derive(Debug, Args)]
struct NameArgs {
    /// Which one
    name: String,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn workspace(args: &WorkspaceArgs) -> anyhow::Result<ExitCode> {
    match &args.verb {
        WorkspaceVerb::Create(args) => args.create(),
        WorkspaceVerb::Suspend(args) => args.name.act("suspend", "Suspending", &SuspendWorkspace { diff: args.diff }),
        WorkspaceVerb::Resume(args) => args.act("resume", "Resuming", &json!({})),
        WorkspaceVerb::List(args) => args.list(),
        WorkspaceVerb::Delete(args) => args.delete(),
    }?;
    Ok(ExitCode::SUCCESS)
}

impl CreateArgs {
    fn create(&self) -> anyhow::Result<()> {
        let client = self.daemon.client()?;
        let _stage = progress::reporter(false).stage("Making the workspace", None);
        let wanted = CreateWorkspace {
            name: self.name.clone(),
            snapshot_tag: self.snapshot.clone(),
            per_child_netns: self.per_child_netns,
            memory_limit_mib: self.limits.memory_limit_mib(),
            limits: self.limits.others(),
            env: self.env.iter().cloned().collect(),
        };
        show(&client.post(&path(&["workspaces"], &[]), &wanted)?, self.json)
    }
}

impl NameArgs {
    fn act(&self, verb: &str, doing: &str, body: &impl serde::Serialize) -> anyhow::Result<()> {
        let client = self.daemon.client()?;
        let _stage = progress::reporter(false).stage(&format!("{doing} `{}`", self.name), None);
        show(&client.post(&path(&["workspaces", &self.name, verb], &[]), body)?, self.json)
    }

    fn delete(&self) -> anyhow::Result<()> {
        self.daemon.client()?.delete(&path(&["workspaces", &self.name], &[]))?;
        output::line(&if self.json { json!({ "deleted": self.name }).to_string() } else { self.name.clone() })
    }
}

impl ListArgs {
    fn list(&self) -> anyhow::Result<()> {
        let found: Vec<WorkspaceInfo> = self.daemon.client()?.get(&path(&["workspaces"], &[]))?;
        if self.json {
            return output::line(&serde_json::to_string(&found)?);
        }
        let columns = [
            Column::Left("NAME"),
            Column::Left("STATUS"),
            Column::Left("SNAPSHOT"),
            Column::Left("SANDBOX"),
            Column::Right("LAST USED"),
        ];
        let rows = found.iter().map(|one| {
            [
                one.name.clone(),
                one.status.as_str().into(),
                one.source_snapshot_tag.clone(),
                one.live_sandbox_id.clone().unwrap_or_else(|| "-".into()),
                age(now().saturating_sub(one.last_active_unix)),
            ]
        });
        output::line(&table(columns, &rows.collect::<Vec<_>>()))
    }
}

fn show(workspace: &WorkspaceInfo, json: bool) -> anyhow::Result<()> {
    if json {
        return output::line(&serde_json::to_string(workspace)?);
    }
    let runs = workspace.live_sandbox_id.as_ref().map(|id| format!(" as {id}")).unwrap_or_default();
    output::line(&format!("{} {}{runs}", workspace.name, workspace.status.as_str()))
}
