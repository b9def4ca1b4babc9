//! The host's side of a guest's network, made with system calls and netlink alone: no program is run.
//!
//! [`Tap`] is all that a VM on the host's own network has. A [`Network`] is what a sandbox gets: a namespace of its own
//! with a tap and an uplink ([`plan`]), closed but for what its policy opens ([`policy`]), counted and limited. A [`Door`]
//! is the address by which published clients look for a sandbox.
//!
//! A tap is never persistent. It disappears with the last descriptor of it, so a VMM that is killed with its client
//! leaves no interface, address or route behind, and a namespace without a tap is known to be nobody's.

mod asked;
pub mod dns;
mod door;
mod host;
mod learned;
mod limits;
mod link;
mod netlink;
mod netns;
mod network;
mod nft;
pub mod plan;
pub mod policy;
pub mod pool;
mod report;
mod ruleset;
mod site;
mod sys;
mod tap;
#[cfg(test)]
mod testing;

pub use asked::NamesReport;
pub use dns::{Names, Upstream};
pub use door::{Door, DoorError};
pub use host::not_forwarded;
pub use limits::Limits;
pub use netns::Directory;
pub use network::{Network, NetworkError};
pub use plan::{Number, Turn};
pub use policy::{Egress, PolicyError};
pub use pool::{Lease, Pool};
pub use report::{Attempt, Report, Traffic};
pub use site::Site;
pub use tap::{GUEST_MAC, MTU, Tap, TapError, VNET_HEADER_LEN};
