//! Where a guest may connect to.
//!
//! ```text
//! none                                  nowhere; the default
//! all                                   anywhere but what is never reached unless it is named
//! pypi.org:443,*.debian.org:80,10.1.0.0/16,udp:192.0.2.7:5000-5010
//! [tcp:|udp:] ADDRESS | ADDRESS/BITS | NAME | *.NAME [:PORT | :FIRST-LAST]
//! ```
//!
//! Without a protocol a port is one of TCP and of UDP; without either, everything is meant. `*.NAME` is every name below
//! `NAME`, at any depth, and not `NAME` itself. A network names an address that is never reached otherwise ([`NEVER`])
//! only when it lies within such a range: `169.254.169.254` does, `0.0.0.0/0` does not.
//!
//! The text comes from whoever asks, so all of it is bounded: its length, the number of entries, and each name.

mod names;

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

pub use names::HostName;

/// The longest text of a policy.
pub const MAX_TEXT: usize = 32 << 10;
/// The most entries of an allow-list: each is a rule that a packet of a new connection may have to pass.
pub const MAX_ENTRIES: usize = 128;

/// What no policy opens unless it names it: this network, loopback, link-local (with the metadata services of most
/// clouds), multicast and all above it, the networks of all guests, the outside addresses of all sandboxes; and the
/// metadata services that are elsewhere (Azure, Alibaba, Oracle).
pub const NEVER: [Ipv4Net; 9] = [
    Ipv4Net::new_assert(Ipv4Addr::new(0, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 3),
    Ipv4Net::new_assert(Ipv4Addr::new(10, 42, 0, 0), 16),
    Ipv4Net::new_assert(crate::plan::OUTSIDE, crate::plan::OUTSIDE_PREFIX),
    Ipv4Net::new_assert(Ipv4Addr::new(168, 63, 129, 16), 32),
    Ipv4Net::new_assert(Ipv4Addr::new(100, 100, 100, 200), 32),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 0, 0, 0), 24),
];

/// Networks that belong to whoever runs them. A name stands for an address there only when the policy has that very name:
/// who answers for what lies below a wildcard could otherwise lead a sandbox to anything in the host's neighbourhood.
const PRIVATE: [Ipv4Net; 4] = [
    Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10),
];

/// Why a text is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Longer than anybody means.
    #[error("an egress policy has no more than {MAX_TEXT} bytes")]
    TooLong,
    /// More entries than packets can be compared with.
    #[error("an allow-list has no more than {MAX_ENTRIES} entries")]
    TooMany,
    /// There is nothing in it.
    #[error("an egress policy is `none`, `all`, or a list of addresses, networks and names")]
    Empty,
    /// `none` or `all` beside something else.
    #[error("`{word}` stands alone: it is not an entry of a list")]
    NotAlone {
        /// Which of the two.
        word: String,
    },
    /// Guests have no IPv6.
    #[error("`{entry}`: sandboxes have IPv4 only; give an IPv4 address or a name")]
    Ipv6 {
        /// The entry.
        entry: String,
    },
    /// Not a network.
    #[error("`{entry}`: a network is an IPv4 address and up to 32 bits, as in 10.1.0.0/16, with zeroes after them")]
    Network {
        /// The entry.
        entry: String,
    },
    /// Not a name.
    #[error("`{entry}`: a name has letters, digits and hyphens, as in example.org or *.example.org")]
    Name {
        /// The entry.
        entry: String,
    },
    /// Not ports.
    #[error("`{entry}`: ports are one of 1 to 65535 or a range, as in :443 or :8000-8010")]
    Ports {
        /// The entry.
        entry: String,
    },
}

/// Where a guest may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Egress {
    /// Nowhere.
    #[default]
    None,
    /// Anywhere but [`NEVER`] and the host.
    All,
    /// Only there; never empty.
    Allow(Vec<Entry>),
}

/// One entry of an allow-list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Where.
    pub to: Destination,
    /// What.
    pub service: Service,
}

/// Where an entry allows to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// Addresses.
    Network(Ipv4Net),
    /// The addresses of that name, while the name server says so.
    Name(HostName),
    /// The same of all names below that one.
    Below(HostName),
}

/// What an entry allows there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Service {
    /// Only that protocol.
    pub protocol: Option<Protocol>,
    /// Only these ports, first and last.
    pub ports: Option<(u16, u16)>,
}

/// A protocol that has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Egress {
    /// The policy of a list, as JSON gives it: each part may be several entries.
    ///
    /// # Errors
    /// When a part is not understood or there are too many.
    pub fn from_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Result<Self, PolicyError> {
        let (mut entries, mut length) = (Vec::new(), 0_usize);
        for part in parts {
            length = length.saturating_add(part.len());
            if length > MAX_TEXT {
                return Err(PolicyError::TooLong);
            }
            for text in part.split([',', ' ', '\t', '\n', '\r']).filter(|text| !text.is_empty()) {
                if entries.len() == MAX_ENTRIES {
                    return Err(PolicyError::TooMany);
                }
                entries.push(text);
            }
        }
        match entries.as_slice() {
            [] => Err(PolicyError::Empty),
            ["none"] => Ok(Self::None),
            ["all"] => Ok(Self::All),
            list => list.iter().map(|text| text.parse()).collect::<Result<_, _>>().map(Self::Allow),
        }
    }

    /// The entries; none unless it is a list.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        match self {
            Self::None | Self::All => &[],
            Self::Allow(entries) => entries,
        }
    }

    /// What entries with names allow, each once: a number for each is its place.
    #[must_use]
    pub fn named_services(&self) -> Vec<Service> {
        let mut services = Vec::new();
        for entry in self.entries() {
            if !matches!(entry.to, Destination::Network(_)) && !services.contains(&entry.service) {
                services.push(entry.service);
            }
        }
        services
    }

    /// What is allowed at the addresses of that name, or `None` when it may not even be asked for.
    #[must_use]
    pub fn services_of(&self, name: &HostName) -> Option<Vec<Service>> {
        if *self == Self::All {
            // Every address is open already.
            return Some(Vec::new());
        }
        let services: Vec<_> =
            self.entries().iter().filter(|entry| entry.to.is_name_of(name)).map(|entry| entry.service).collect();
        (!services.is_empty()).then_some(services)
    }

    /// Whether that name may stand for that address, which is not the host's.
    #[must_use]
    pub fn may_mean(&self, name: &HostName, address: Ipv4Addr) -> bool {
        let of = |networks: &[Ipv4Net]| networks.iter().any(|network| network.contains(&address));
        let exactly =
            || *self == Self::All || self.entries().iter().any(|entry| entry.to == Destination::Name(name.clone()));
        !of(&NEVER) && (!of(&PRIVATE) || exactly())
    }

    /// The addresses that it names one by one.
    #[must_use]
    pub fn singles(&self) -> Vec<Ipv4Addr> {
        let single = |entry: &Entry| match entry.to {
            Destination::Network(network) if network.prefix_len() == 32 => Some(network.addr()),
            Destination::Network(_) | Destination::Name(_) | Destination::Below(_) => None,
        };
        self.entries().iter().filter_map(single).collect()
    }

    /// A number that two policies share only by chance (FNV-1a): what a connection was let through by.
    #[must_use]
    pub fn mark(&self) -> u32 {
        let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        // 0 is the mark of connections that nobody judged.
        self.to_string().bytes().fold(0x811C_9DC5, fold).max(1)
    }
}

impl FromStr for Egress {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::from_parts([text])
    }
}

impl TryFrom<String> for Egress {
    type Error = PolicyError;

    fn try_from(text: String) -> Result<Self, PolicyError> {
        text.parse()
    }
}

impl From<Egress> for String {
    fn from(egress: Egress) -> Self {
        egress.to_string()
    }
}

impl fmt::Display for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::All => f.write_str("all"),
            Self::Allow(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    write!(f, "{}{entry}", if index == 0 { "" } else { "," })?;
                }
                Ok(())
            }
        }
    }
}

impl Destination {
    fn is_name_of(&self, asked: &HostName) -> bool {
        match self {
            Self::Network(_) => false,
            Self::Name(name) => asked == name,
            Self::Below(name) => asked.is_below(name),
        }
    }

    /// Whether it names what is never reached otherwise.
    #[must_use]
    pub fn names_forbidden(&self) -> bool {
        matches!(self, Self::Network(network) if NEVER.iter().any(|never| never.contains(network)))
    }
}

impl FromStr for Entry {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        if text == "none" || text == "all" {
            return Err(PolicyError::NotAlone { word: text.into() });
        }
        let (protocol, rest) = match text.split_once(':') {
            Some(("tcp", rest)) => (Some(Protocol::Tcp), rest),
            Some(("udp", rest)) => (Some(Protocol::Udp), rest),
            _ => (None, text),
        };
        let entry = || text.to_owned();
        if rest.starts_with('[') || rest.matches(':').count() > 1 {
            return Err(PolicyError::Ipv6 { entry: entry() });
        }
        let (to, ports) = match rest.split_once(':') {
            Some((to, ports)) => (to, Some(parse_ports(ports).ok_or_else(|| PolicyError::Ports { entry: entry() })?)),
            None => (rest, None),
        };
        Ok(Self { to: parse_destination(to, text)?, service: Service { protocol, ports } })
    }
}

fn parse_destination(to: &str, entry: &str) -> Result<Destination, PolicyError> {
    if let Ok(address) = to.parse::<Ipv4Addr>() {
        return Ok(Destination::Network(address.into()));
    }
    if to.contains('/') {
        let network = to.parse::<Ipv4Net>().ok().filter(|network| network.trunc() == *network);
        return network.map(Destination::Network).ok_or_else(|| PolicyError::Network { entry: entry.into() });
    }
    let no_name = || PolicyError::Name { entry: entry.into() };
    match to.strip_prefix("*.") {
        Some(name) => HostName::new(name).map(Destination::Below).ok_or_else(no_name),
        None => HostName::new(to).map(Destination::Name).ok_or_else(no_name),
    }
}

fn parse_ports(text: &str) -> Option<(u16, u16)> {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    (first > 0 && first <= last).then_some((first, last))
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.service.protocol {
            Some(Protocol::Tcp) => f.write_str("tcp:")?,
            Some(Protocol::Udp) => f.write_str("udp:")?,
            None => {}
        }
        match &self.to {
            Destination::Network(network) if network.prefix_len() == 32 => write!(f, "{}", network.addr())?,
            Destination::Network(network) => write!(f, "{network}")?,
            Destination::Name(name) => write!(f, "{name}")?,
            Destination::Below(name) => write!(f, "*.{name}")?,
        }
        match self.service.ports {
            Some((first, last)) if first == last => write!(f, ":{first}"),
            Some((first, last)) => write!(f, ":{first}-{last}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
