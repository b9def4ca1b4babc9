//! Who has which address.
//!
//! ```text
//! guest 10.42.0.2/24 ── tap 10.42.0.1 │ namespace forkd-child-K │ veth0 198.18.a.b+1 ── forkd-vK 198.18.a.b │ host
//! ```
//!
//! Inside, every guest has the same address, gateway and hardware address, so a fork finds the network it remembers.
//! Outside, network `K` has the pair `198.18.0.0 + 2K`, one address for each end of its uplink.
//!
//! The range is the one set aside for tests of network devices (RFC 2544): nobody's provider, cloud, VPN or office gives
//! it out, which cannot be said of any part of 10.0.0.0/8 or 100.64.0.0/10, and it holds 65 536 pairs. It never leaves
//! the host, because the host hides it behind its own address.
//!
//! There is no IPv6. A guest's namespace has it switched off, its packets are dropped and counted on the way in, and a
//! question for an IPv6 address is answered with "there is none", so that programs use IPv4 without waiting.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// The guest's address.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 42, 0, 2);
/// The guest's gateway and name server: the tap's address.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 42, 0, 1);
/// How many leading bits of the two name their network.
pub const INSIDE_PREFIX: u8 = 24;
/// The tap's name inside its namespace.
pub const TAP: &str = "forkd-tap0";
/// The uplink's name inside its namespace.
pub const UPLINK: &str = "veth0";
/// What the names of all uplinks begin with on the host.
pub const HOST_LINK: &str = "forkd-v";
/// What the names of all namespaces begin with.
pub const NAMESPACE: &str = "forkd-child-";

/// Where the outside addresses begin.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// How many leading bits of them are the same.
pub const OUTSIDE_PREFIX: u8 = 15;
/// How many leading bits the two ends of an uplink share.
pub const PAIR_PREFIX: u8 = 31;

/// Whose turn it is on a network. A number is given out again and again, a turn never: who remembers both cannot take
/// the network of the next for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Turn(u64);

impl Turn {
    /// One that nobody had.
    pub(crate) fn new() -> io::Result<Self> {
        let mut bytes = [0; 8];
        rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()))?;
        Ok(Self(u64::from_ne_bytes(bytes)))
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "turn-{:016x}", self.0)
    }
}

/// The number of a network: one of 65 536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Number(u16);

impl Number {
    /// The network of that number.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u16::MAX).map(Self)
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The name of its namespace.
    #[must_use]
    pub fn namespace(self) -> String {
        format!("{NAMESPACE}{}", self.0)
    }

    /// The network whose namespace has that name.
    #[must_use]
    pub fn of_namespace(name: &str) -> Option<Self> {
        let number = Self(name.strip_prefix(NAMESPACE)?.parse().ok()?);
        // `+7` and `007` are numbers as well, and nobody's names.
        (number.namespace() == name).then_some(number)
    }

    /// The uplink's name on the host.
    #[must_use]
    pub fn host_link(self) -> String {
        format!("{HOST_LINK}{}", self.0)
    }

    /// The hardware addresses of the uplink's ends: the host's, and the namespace's. They are set, so that each end can
    /// be told who the other is.
    pub(crate) const fn hardware(self) -> ([u8; 6], [u8; 6]) {
        let [high, low] = self.0.to_be_bytes();
        ([0x02, 0xFC, 0x00, 0x00, high, low], [0x02, 0xFC, 0x00, 0x01, high, low])
    }

    /// The host's end of the uplink.
    #[must_use]
    pub fn host(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(OUTSIDE.to_bits() + 2 * u32::from(self.0))
    }

    /// The namespace's end: what the guest is to everybody outside.
    #[must_use]
    pub fn outside(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.host().to_bits() + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_network_is_somebody_else_outside() {
        let mut seen = HashSet::new();
        for number in Number::all() {
            for address in [number.host(), number.outside()] {
                assert_eq!(address.to_bits() >> (32 - OUTSIDE_PREFIX), OUTSIDE.to_bits() >> (32 - OUTSIDE_PREFIX));
                assert!(seen.insert(address), "{address} is given twice");
            }
            assert_eq!(number.host().to_bits() >> 1, number.outside().to_bits() >> 1, "one pair");
            assert!(number.host_link().len() < 16, "the kernel's names end there");
            assert_eq!(Number::of_namespace(&number.namespace()), Some(number));
        }
        assert_eq!(seen.len(), 1 << 17);
    }

    #[test]
    fn a_name_that_is_not_exactly_ours_is_nobody() {
        for name in ["forkd-child-", "forkd-child-65536", "forkd-child-007", "forkd-child-+7", "forkd-child-7x", "x"] {
            assert_eq!(Number::of_namespace(name), None, "{name}");
        }
    }
}
