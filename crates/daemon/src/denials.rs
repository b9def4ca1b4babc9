//! What sandboxes were refused, written into the audit log: one line for each destination when it is first tried, and
//! again when nobody tried it for as long as the kernel remembers; one for each name that is asked for; and one when a
//! guest first pretends to be somebody else.
//!
//! It is looked at every other second, and once more when the sandbox has ended.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::{Attempt, NamesReport, Network, NetworkReport, Turn};
use serde::Serialize;

use crate::audit::{Audit, timestamp};

/// A line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    ts: String,
    sandbox: &'a str,
    #[serde(flatten)]
    denial: &'a Denial,
}

/// What was refused.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Denial {
    /// A connection.
    EgressDenied {
        /// The protocol's number: 6 is TCP, 17 UDP, 1 ICMP.
        protocol: u8,
        address: Ipv4Addr,
        port: Option<u16>,
        /// Until now.
        packets: u64,
    },
    /// A name, or one that stands for what must not be reached.
    NameRefused { name: String },
    /// Packets under addresses that are not the guest's.
    PacketsSpoofed {
        /// Until now.
        packets: u64,
    },
}

/// What of one sandbox is written down.
#[derive(Debug, Default)]
struct Written {
    /// How many packets had been refused when it was last looked at, and how many names.
    packets: u64,
    refused_names: u64,
    destinations: HashSet<(Ipv4Addr, u8, Option<u16>)>,
    names: HashSet<String>,
    has_spoofed: bool,
}

/// What of all of them is.
#[derive(Debug)]
pub(crate) struct Denials {
    audit: Audit,
    /// By whose turn it is on a network: sandboxes, and what is written down of them.
    of: Mutex<HashMap<Turn, (String, Written)>>,
}

impl Denials {
    pub(crate) fn new(audit: Audit) -> Self {
        Self { audit, of: Mutex::default() }
    }

    /// That network is this sandbox's.
    pub(crate) fn watch(&self, turn: Turn, sandbox: &str) {
        self.of().entry(turn).or_insert_with(|| (sandbox.to_owned(), Written::default()));
    }

    /// Writes down what is new on the networks in use.
    pub(crate) fn look(&self, in_use: impl FnOnce() -> Vec<Arc<Network>>) {
        let before: Vec<Turn> = self.of().keys().copied().collect();
        let networks = in_use();
        networks.iter().for_each(|network| self.look_at(network));
        // One that went before it was known whose it was has had its last look.
        let turns: HashSet<Turn> = networks.iter().map(|network| network.turn()).collect();
        let mut of = self.of();
        before.iter().filter(|turn| !turns.contains(turn)).for_each(|turn| drop(of.remove(turn)));
    }

    /// The same of a sandbox that has ended.
    pub(crate) fn last_look(&self, network: &Network) {
        self.look_at(network);
        self.of().remove(&network.turn());
    }

    fn look_at(&self, network: &Network) {
        if !self.of().contains_key(&network.turn()) {
            return;
        }
        let report = match network.report() {
            Ok(report) => report,
            // Its VM has ended since.
            Err(error) => return log::debug!("{}: {error}", network.number().namespace()),
        };
        let names = network.names_report();
        if let Some((sandbox, written)) = self.of().get_mut(&network.turn()) {
            for denial in written.news(report, names) {
                self.audit.note(&Line { ts: timestamp(), sandbox, denial: &denial });
            }
        }
    }

    fn of(&self) -> MutexGuard<'_, HashMap<Turn, (String, Written)>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Written {
    /// What was not there the last time.
    fn news(&mut self, report: NetworkReport, names: NamesReport) -> Vec<Denial> {
        let mut news = Vec::new();
        if !self.has_spoofed && report.spoofed.packets > 0 {
            self.has_spoofed = true;
            news.push(Denial::PacketsSpoofed { packets: report.spoofed.packets });
        }
        if self.packets != report.denied.packets {
            self.packets = report.denied.packets;
            news.extend(self.new_destinations(report.attempts));
        }
        if self.refused_names != names.refused {
            self.refused_names = names.refused;
            let before = std::mem::replace(&mut self.names, names.last_refused.iter().cloned().collect());
            let new = names.last_refused.into_iter().filter(|name| !before.contains(name));
            news.extend(new.map(|name| Denial::NameRefused { name }));
        }
        news
    }

    fn new_destinations(&mut self, attempts: Vec<Attempt>) -> impl Iterator<Item = Denial> + use<> {
        let key = |attempt: &Attempt| (attempt.address, attempt.protocol, attempt.port);
        let before = std::mem::replace(&mut self.destinations, attempts.iter().map(key).collect());
        let new = attempts.into_iter().filter(move |attempt| !before.contains(&key(attempt)));
        new.map(|Attempt { protocol, address, port, packets, .. }| Denial::EgressDenied {
            protocol,
            address,
            port,
            packets,
        })
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
        let port = |denial: &Denial| if let Denial::EgressDenied { port, .. } = denial { *port } else { None };
        let mut ports =
            |report| written.news(report, NamesReport::default()).iter().filter_map(port).collect::<Vec<_>>();
        assert!(ports(report(0, &[])).is_empty());
        assert_eq!(ports(report(1, &[80])), [80]);
        assert!(ports(report(9, &[80])).is_empty(), "however often it is tried");
        assert_eq!(ports(report(10, &[81, 80])), [81]);
        assert!(ports(report(11, &[81])).is_empty());
        assert_eq!(ports(report(12, &[80])), [80], "it had been forgotten");
    }

    #[test]
    fn a_name_is_written_down_once_and_so_is_a_guest_that_pretends() {
        let mut written = Written::default();
        let names = |refused, names: &[&str]| NamesReport {
            refused,
            last_refused: names.iter().map(ToString::to_string).collect(),
            ..NamesReport::default()
        };
        let refused = |name: &str| Denial::NameRefused { name: name.into() };
        assert_eq!(written.news(report(0, &[]), names(1, &["a.org"])), [refused("a.org")]);
        assert!(written.news(report(0, &[]), names(1, &["a.org"])).is_empty());
        let spoofed = |packets| NetworkReport { spoofed: Traffic { packets, bytes: 60 }, ..NetworkReport::default() };
        let news = written.news(spoofed(3), names(3, &["b.org", "a.org"]));
        assert_eq!(news, [Denial::PacketsSpoofed { packets: 3 }, refused("b.org")]);
        assert!(written.news(spoofed(9), names(4, &["a.org", "b.org"])).is_empty());
        let line = Line { ts: "now".into(), sandbox: "sb-1", denial: &refused("a.org") };
        let text = r#"{"ts":"now","sandbox":"sb-1","event":"name_refused","name":"a.org"}"#;
        assert_eq!(serde_json::to_string(&line).unwrap(), text);
    }
}
