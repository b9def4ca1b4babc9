//! What a sandbox's network counted and refused, as the kernel remembers it.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde::Serialize;

use crate::nft::{Element, Nft};
use crate::ruleset::{ATTEMPT_KEPT, ATTEMPTS, DENIED, IN, IPV6, LIMITED, OUT, SPOOFED};

/// What a sandbox's network counted since it was given out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What left the sandbox.
    pub sent: Traffic,
    /// What came back.
    pub received: Traffic,
    /// What the policy did not allow.
    pub denied: Traffic,
    /// What did not come from the guest's own addresses.
    pub spoofed: Traffic,
    /// What was IPv6, which there is not.
    pub ipv6: Traffic,
    /// What was more than the limits allow.
    pub limited: Traffic,
    /// What was refused in the last ten minutes, the latest first: up to 128 different destinations.
    pub attempts: Vec<Attempt>,
}

/// So much of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A destination that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// Where to.
    pub address: Ipv4Addr,
    /// The protocol's number: 6 is TCP, 17 UDP, 1 ICMP.
    pub protocol: u8,
    /// The port, of those that have one.
    pub port: Option<u16>,
    /// How many packets.
    pub packets: u64,
    /// How long ago the last one was, in milliseconds.
    pub ago_ms: u64,
}

pub(crate) fn read(nft: &mut Nft) -> io::Result<Report> {
    let mut counters: HashMap<_, Traffic> = HashMap::new();
    // Some are in both tables.
    for (name, packets, bytes) in nft.counters()? {
        let all = counters.entry(name).or_default();
        (all.packets, all.bytes) = (all.packets.saturating_add(packets), all.bytes.saturating_add(bytes));
    }
    let of = |name: &str| counters.get(name).copied().unwrap_or_default();
    let mut attempts: Vec<_> = nft.elements(ATTEMPTS)?.iter().filter_map(attempt).collect();
    attempts.sort_by_key(|attempt| attempt.ago_ms);
    Ok(Report {
        sent: of(OUT),
        received: of(IN),
        denied: of(DENIED),
        spoofed: of(SPOOFED),
        ipv6: of(IPV6),
        limited: of(LIMITED),
        attempts,
    })
}

fn attempt(element: &Element) -> Option<Attempt> {
    const WITH_PORTS: [u8; 2] = [6, 17];
    let [a, b, c, d, protocol, _, _, _, high, low, ..] = element.key[..] else { return None };
    let port = WITH_PORTS.contains(&protocol).then(|| u16::from_be_bytes([high, low]));
    let left = element.left.unwrap_or(Duration::ZERO);
    let ago_ms = u64::try_from(ATTEMPT_KEPT.saturating_sub(left).as_millis()).unwrap_or(u64::MAX);
    Some(Attempt { address: Ipv4Addr::new(a, b, c, d), protocol, port, packets: element.packets, ago_ms })
}
