//! What sandboxes were refused, written into the audit log: one line for each destination when it is first tried, and
//! again when nobody tried it for as long as the kernel remembers.

use std::collections::{HashMap, HashSet};

use engine::{Attempt, NetworkReport};
use serde::Serialize;

use crate::audit::timestamp;
use crate::registry::Sandbox;
use crate::state::App;

/// What was refused.
#[derive(Debug, Serialize)]
struct Denial<'a> {
    ts: String,
    event: &'static str,
    sandbox: &'a str,
    /// The protocol's number: 6 is TCP, 17 UDP, 1 ICMP.
    protocol: u8,
    address: String,
    port: Option<u16>,
    /// Until now.
    packets: u64,
}

/// What of one sandbox is written down.
#[derive(Debug, Default)]
struct Written {
    /// How many packets had been refused when it was last looked at.
    packets: u64,
    destinations: HashSet<(std::net::Ipv4Addr, u8, Option<u16>)>,
}

/// What of all of them is.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    of: HashMap<String, Written>,
}

impl Denials {
    /// Writes down what is new.
    pub(crate) fn note(&mut self, app: &App, sandboxes: &[Sandbox]) {
        let networks = app.networks.in_use();
        if networks.is_empty() {
            return self.of.clear();
        }
        let networks: HashMap<_, _> = networks.into_iter().map(|one| (one.number().namespace(), one)).collect();
        let mut before = std::mem::take(&mut self.of);
        for sandbox in sandboxes {
            let Some(network) = sandbox.netns.as_ref().and_then(|name| networks.get(name)) else { continue };
            let report = match network.report() {
                Ok(report) => report,
                Err(error) => {
                    // Its VM has ended since.
                    log::debug!("{}: {error}", sandbox.id);
                    continue;
                }
            };
            let mut written = before.remove(&sandbox.id).unwrap_or_default();
            for attempt in written.news(report) {
                app.audit.note(&Denial {
                    ts: timestamp(),
                    event: "egress_denied",
                    sandbox: &sandbox.id,
                    protocol: attempt.protocol,
                    address: attempt.address.to_string(),
                    port: attempt.port,
                    packets: attempt.packets,
                });
            }
            self.of.insert(sandbox.id.clone(), written);
        }
    }
}

impl Written {
    /// What was not there the last time.
    fn news(&mut self, report: NetworkReport) -> Vec<Attempt> {
        let packets = std::mem::replace(&mut self.packets, report.denied.packets);
        if packets == report.denied.packets {
            return Vec::new();
        }
        let key = |attempt: &Attempt| (attempt.address, attempt.protocol, attempt.port);
        let before = std::mem::replace(&mut self.destinations, report.attempts.iter().map(key).collect());
        report.attempts.into_iter().filter(|attempt| !before.contains(&key(attempt))).collect()
    }
}

#[cfg(test)]
mod tests {
    use engine::Traffic;

    use super::*;

    fn report(packets: u64, ports: &[u16]) -> NetworkReport {
        let attempt = |port: &u16| Attempt {
            address: [198, 51, 100, 7].into(),
            protocol: 6,
            port: Some(*port),
            packets,
            ago_ms: 0,
        };
        let denied = Traffic { packets, bytes: 60 * packets };
        NetworkReport { denied, attempts: ports.iter().map(attempt).collect(), ..NetworkReport::default() }
    }

    #[test]
    fn a_destination_is_written_down_when_it_is_new() {
        let mut written = Written::default();
        let mut ports = |report| written.news(report).iter().filter_map(|attempt| attempt.port).collect::<Vec<_>>();
        assert!(ports(report(0, &[])).is_empty());
        assert_eq!(ports(report(1, &[80])), [80]);
        assert!(ports(report(9, &[80])).is_empty(), "however often it is tried");
        assert_eq!(ports(report(10, &[81, 80])), [81]);
        assert!(ports(report(11, &[81])).is_empty());
        assert_eq!(ports(report(12, &[80])), [80], "it had been forgotten");
    }
}
