//! `forkd spawn`: sandboxes by way of the daemon, with a time to live and labels.

use std::process::ExitCode;

use api::{CreateSandboxes, SandboxInfo};
use clap::Args;
use client::path;

use crate::daemon::DaemonArgs;
use crate::egress::EgressArgs;
use crate::limits::LimitArgs;
use crate::published::ForkFlags;
use crate::run::parse_variable;
use crate::table::{Column, table};
use crate::{output, progress};

const EXAMPLES: &str = "\
Examples:
  forkd spawn --tag pyagent
  forkd spawn --tag pyagent -n 10 --ttl-secs 600 --label run=7
  FORKD_URL=https://host:8889 FORKD_TOKEN=... forkd spawn --tag pyagent --json | jq -r '.[].id'

All of them, or none. They live until they are killed, or their time is over.";

/// Forks sandboxes that the daemon looks after
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SpawnArgs {
    /// The snapshot
    #[arg(long, value_name = "TAG")]
    tag: String,
    /// How many
    #[arg(short = 'n', long = "n", value_name = "N", default_value_t = 1)]
    count: u32,
    /// Ends them after so many seconds, unless they are renewed
    #[arg(long, value_name = "SECONDS")]
    ttl_secs: Option<u64>,
    /// Puts a label on them; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    label: Vec<(String, String)>,
    /// Sets an environment variable in all of them; repeatable
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ForkFlags,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    network: EgressArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn spawn(args: &SpawnArgs) -> anyhow::Result<ExitCode> {
    args.flags.tell()?;
    let client = args.daemon.client()?;
    let wanted = CreateSandboxes {
        snapshot_tag: args.tag.clone(),
        n: args.count,
        per_child_netns: args.flags.per_child_netns,
        memory_limit_mib: args.limits.memory_limit_mib(),
        limits: args.limits.others(),
        prewarm: args.flags.prewarm,
        live_fork: args.flags.live_fork,
        hugepages: false,
        egress: args.network.policy(),
        network_limits: args.network.limits(),
        ttl_secs: args.ttl_secs,
        labels: args.label.iter().cloned().collect(),
        env: args.env.iter().cloned().collect(),
        per_child: Vec::new(),
    };
    let stage = progress::reporter(false).stage(&format!("Forking {} sandboxes", args.count), None);
    let made: Vec<SandboxInfo> = client.post(&path(&["sandboxes"], &[]), &wanted)?;
    drop(stage);
    if args.json {
        output::line(&serde_json::to_string(&made)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let columns = [Column::Left("ID"), Column::Left("GUEST_ADDR"), Column::Left("NETNS")];
    let rows = made.into_iter().map(|one| [one.id, one.guest_addr, one.netns.unwrap_or_else(|| "-".into())]);
    output::line(&table(columns, &rows.collect::<Vec<_>>()))?;
    Ok(ExitCode::SUCCESS)
}
