//! How much of the network one sandbox may use.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// How much one sandbox may use. Nothing at all is said by a policy and not by a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Bytes in a second, out of the guest.
    pub out_bytes_per_second: Option<NonZeroU32>,
    /// Bytes in a second, into the guest.
    pub in_bytes_per_second: Option<NonZeroU32>,
    /// Packets in a second, each way.
    pub packets_per_second: Option<NonZeroU32>,
    /// Connections at a time. There is always a limit: the table of connections is the host's, and all sandboxes
    /// together get no more than half of it.
    pub connections: NonZeroU32,
}

impl Limits {
    /// More connections than most programs open.
    pub const CONNECTIONS: NonZeroU32 = NonZeroU32::new(1024).expect("it is not zero");
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
