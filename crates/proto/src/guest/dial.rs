//! Who in the guest a connection is for.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::GuestPath;

/// Somebody who listens in the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DialTarget {
    /// On a TCP port.
    Tcp {
        /// Of which of the guest's own addresses; loopback, first of IPv4 and then of IPv6, when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<IpAddr>,
        /// Which port.
        port: u16,
    },
    /// On a unix socket.
    Unix {
        /// Where it is.
        path: GuestPath,
    },
}
