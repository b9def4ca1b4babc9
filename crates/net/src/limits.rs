//! How much of the network one sandbox may use.

use serde::{Deserialize, Serialize};

/// How much one sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Bytes in a second, out of the guest.
    pub out_bytes_per_second: Option<u32>,
    /// Bytes in a second, into the guest.
    pub in_bytes_per_second: Option<u32>,
    /// Packets in a second, each way.
    pub packets_per_second: Option<u32>,
    /// Connections at a time. There is always a limit: the table of connections is the host's.
    pub connections: u32,
}

impl Limits {
    /// More connections than most programs open, and few enough that hundreds of sandboxes at it harm nobody.
    pub const CONNECTIONS: u32 = 4096;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            out_bytes_per_second: None,
            in_bytes_per_second: None,
            packets_per_second: None,
            connections: Self::CONNECTIONS,
        }
    }
}
