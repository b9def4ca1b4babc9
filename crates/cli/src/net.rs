//! `forkd net`: what a sandbox may reach, what it did, and what it was refused.

use std::process::ExitCode;

use api::{Attempt, NetworkInfo, NetworkLimits, SetEgress, Traffic};
use clap::Args;
use client::path;

use crate::daemon::DaemonArgs;
use crate::egress::EgressArgs;
use crate::output;
use crate::table::{Column, bytes, table};

const EXAMPLES: &str = "\
Examples:
  forkd net sb-6919d1a0-5e884898
  forkd net sb-6919d1a0-5e884898 --egress 'pypi.org:443,*.pythonhosted.org:443'
  forkd net sb-6919d1a0-5e884898 --egress none           from its next packet on
  forkd net sb-6919d1a0-5e884898 --send-kib-per-sec 512  instead of all limits that it had

A policy is `none`, `all`, or a list of addresses, networks (10.1.0.0/16), names and *.names, each with optional ports
(:443, :8000-8010) and protocol (tcp:, udp:). The host, other sandboxes, link-local addresses and the metadata services
of clouds are reached only by those who name them.";

/// Shows a sandbox's network, and changes what it may reach
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct NetArgs {
    /// Which one
    #[arg(value_name = "ID")]
    id: String,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    change: EgressArgs,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn net(args: &NetArgs) -> anyhow::Result<ExitCode> {
    let client = args.daemon.client()?;
    let info: NetworkInfo = if args.change.is_empty() {
        client.get(&path(&["sandboxes", &args.id, "net"], &[]))?
    } else {
        let limits = Some(args.change.limits()).filter(|limits| !limits.is_empty());
        let body = SetEgress { egress: args.change.policy(), limits };
        client.put(&path(&["sandboxes", &args.id, "egress"], &[]), &body)?
    };
    output::line(&if args.json { serde_json::to_string(&info)? } else { text(&info) })?;
    Ok(ExitCode::SUCCESS)
}

fn text(info: &NetworkInfo) -> String {
    let traffic = |one: Traffic| format!("{} in {} packets", bytes(one.bytes), one.packets);
    let mut lines = vec![
        format!("egress    {}", info.egress),
        format!("limits    {}", limits(&info.limits)),
        format!("netns     {} ({} inside, {} to the host)", info.netns, info.guest_addr, info.host_side_addr),
        format!("sent      {}", traffic(info.sent)),
        format!("received  {}", traffic(info.received)),
        format!("denied    {}", traffic(info.denied)),
    ];
    for (what, count) in [("spoofed", info.spoofed), ("IPv6", info.ipv6), ("over limit", info.limited)] {
        if count.packets > 0 {
            lines.push(format!("dropped   {} ({what})", traffic(count)));
        }
    }
    lines.push(format!("names     {} asked for, {} refused", info.names.asked, info.names.refused));
    if !info.names.last_refused.is_empty() {
        lines.push(format!("refused   {}", info.names.last_refused.join(", ")));
    }
    if !info.attempts.is_empty() {
        let columns = [Column::Left("DENIED"), Column::Right("PACKETS"), Column::Right("AGO")];
        lines.push(table(columns, &info.attempts.iter().map(row).collect::<Vec<_>>()));
    }
    lines.join("\n")
}

fn limits(limits: &NetworkLimits) -> String {
    let said = [
        limits.connections.map(|count| format!("{count} connections")),
        limits.packets_per_sec.map(|rate| format!("{rate} packets/s each way")),
        limits.send_kib_per_sec.map(|rate| format!("{rate} KiB/s out")),
        limits.receive_kib_per_sec.map(|rate| format!("{rate} KiB/s in")),
    ];
    said.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn row(attempt: &Attempt) -> [String; 3] {
    let protocol = match attempt.protocol {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        other => format!("ip-{other}"),
    };
    let port = attempt.port.map(|port| format!(":{port}")).unwrap_or_default();
    let ago = format!("{} s", attempt.ago_ms / 1000);
    [format!("{protocol} {}{port}", attempt.address), attempt.packets.to_string(), ago]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_shown() {
        let json = r#"{"netns":"forkd-child-3","guest_addr":"10.42.0.2:8888","host_side_addr":"198.18.0.7","egress":"none",
            "limits":{"connections":1024,"send_kib_per_sec":64},"sent":{"packets":0,"bytes":0},"received":{"packets":0,"bytes":0},"denied":{"packets":2,"bytes":120},
            "spoofed":{"packets":0,"bytes":0},"ipv6":{"packets":5,"bytes":400},"limited":{"packets":0,"bytes":0},
            "attempts":[{"address":"169.254.169.254","protocol":6,"port":80,"packets":2,"ago_ms":3100}],
            "names":{"asked":1,"refused":1,"malformed":0,"last_refused":["evil.example"]}}"#;
        let shown = text(&serde_json::from_str(json).unwrap());
        for part in [
            "egress    none",
            "1024 connections, 64 KiB/s out",
            "tcp 169.254.169.254:80",
            "3 s",
            "(IPv6)",
            "refused   evil.example",
        ] {
            assert!(shown.contains(part), "{part} in\n{shown}");
        }
        assert!(!shown.contains("spoofed"), "{shown}");
    }
}
