//! A sandbox's network: what it may reach, what it did, what it was refused.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where sandboxes may connect to: `none`, `all`, or a list of addresses, networks, names and `*.names`, each with
/// optional ports, as in `pypi.org:443` or `udp:10.1.0.0/16:5000-5010`. One text with commas, or a list of texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EgressPolicy {
    /// As on a command line.
    Text(String),
    /// Its entries.
    List(Vec<String>),
}

/// How much of the network a sandbox may use. What is absent is not limited, but for connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkLimits {
    /// What it sends in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 4_194_303)]
    pub send_kib_per_sec: Option<u32>,
    /// What it receives in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 4_194_303)]
    pub receive_kib_per_sec: Option<u32>,
    /// Packets in a second, each way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub packets_per_sec: Option<u32>,
    /// Connections at a time; 1024, if nobody says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub connections: Option<u32>,
}

impl NetworkLimits {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where a sandbox may connect to from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetEgress {
    /// Instead of what it was; absent, it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// All limits, instead of those it had; absent, they stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<NetworkLimits>,
}

/// A sandbox's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkInfo {
    /// Its namespace on the host.
    pub netns: String,
    /// Who the guest is inside.
    pub guest_addr: String,
    /// Who it is to the host.
    pub host_side_addr: String,
    /// Where it may connect to.
    pub egress: String,
    /// How much of it it may use.
    pub limits: NetworkLimits,
    /// What left it.
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
    /// What was refused in the last ten minutes, the latest first: up to 128 destinations.
    pub attempts: Vec<Attempt>,
    /// What it asked its name server for.
    pub names: Names,
}

/// So much of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A destination that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    /// Where to.
    pub address: String,
    /// The protocol's number: 6 is TCP, 17 UDP, 1 ICMP.
    pub protocol: u8,
    /// The port, of those that have one.
    pub port: Option<u16>,
    /// How many packets.
    pub packets: u64,
    /// How long ago the last one was.
    pub ago_ms: u64,
}

/// Questions for names, since the sandbox was made or the daemon was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Names {
    /// All of them.
    pub asked: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Messages that were no questions.
    pub malformed: u64,
    /// The names that were refused last, the latest first: up to 32.
    pub last_refused: Vec<String>,
}
