//! Tap `k` of 256: interface `forkd-tap<k>`, the host is 10.42.k.1/24, the guest 10.42.k.2.
//!
//! The name is the lock: the kernel refuses a second interface of the same name, so whoever makes `forkd-tap<k>` owns
//! network `k`, across processes, without a file that could be left behind.
//!
//! The guest is at the other end of the link and says there what it likes. So the host speaks no IPv6 on it, in which the
//! guest could make itself the host's way to everywhere, and forwards nothing to or from it.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::plan::{GATEWAY, GUEST, INSIDE_PREFIX, TAP};
use crate::{host, sys};

/// Bytes in front of every packet: `virtio_net_hdr_mrg_rxbuf`, the header of a virtio 1.0 card.
pub const VNET_HEADER_LEN: i32 = 12;
/// The largest packet on the link, without the Ethernet header.
pub const MTU: i32 = 1500;
/// Every guest's hardware address. Each guest is alone on its link, so it can be the same for all; a forked guest then
/// finds the card it remembers.
pub const GUEST_MAC: [u8; 6] = [0xAA, 0xFC, 0x00, 0x00, 0x00, 0x01];

/// What the names of all plain taps begin with.
pub(crate) const PREFIX: &str = "forkd-tap";
const DEVICE: &str = "/dev/net/tun";
const OPEN: OFlags = OFlags::RDWR.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
const PREFIX_LEN: u8 = 24;
const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);

/// Why there is no tap.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The kernel has no tun driver, or nobody made its device node.
    #[error("{DEVICE} does not exist; load the driver with `modprobe tun`")]
    NoDriver,
    /// This process may not configure networks.
    #[error("making a network interface is not permitted; run as root or with CAP_NET_ADMIN")]
    NotPermitted,
    /// All 256 networks are in use.
    #[error("all 256 networks (forkd-tap0 to forkd-tap255) are in use; stop a VM that has one")]
    AllInUse,
    /// The system refused a step for another reason.
    #[error("cannot {step}")]
    Refused {
        /// What was being done.
        step: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// A tap that is up and has its address; ready to be given to a VMM.
#[derive(Debug)]
pub struct Tap {
    /// Reads and writes Ethernet frames, each behind [`VNET_HEADER_LEN`] bytes; never blocks.
    pub fd: OwnedFd,
    /// The interface's name on the host.
    pub name: String,
    /// The host's address; the guest's gateway.
    pub host_ip: Ipv4Addr,
    /// The address the guest is told to take.
    pub guest_ip: Ipv4Addr,
    /// How many leading bits of the addresses name the network.
    pub prefix: u8,
    /// The guest's hardware address.
    pub mac: [u8; 6],
    /// Who answers the guest's questions for names, if anybody does.
    pub name_server: Option<Ipv4Addr>,
}

impl Tap {
    /// Takes the first free network.
    ///
    /// # Errors
    /// When the driver is missing, this process may not, or all networks are taken.
    pub fn create() -> Result<Self, TapError> {
        let fd = open_driver()?;
        for network in 0..=u8::MAX {
            let name = format!("{PREFIX}{network}");
            if attach(&fd, &name)? {
                return Self::configure(fd, name, network);
            }
        }
        Err(TapError::AllInUse)
    }

    /// That of a sandbox's network, as a guest sees it that boots there.
    #[must_use]
    pub fn of_network(fd: OwnedFd) -> Self {
        Self {
            fd,
            name: TAP.into(),
            host_ip: GATEWAY,
            guest_ip: GUEST,
            prefix: INSIDE_PREFIX,
            mac: GUEST_MAC,
            name_server: Some(GATEWAY),
        }
    }

    fn configure(fd: OwnedFd, name: String, network: u8) -> Result<Self, TapError> {
        let host_ip = Ipv4Addr::new(10, 42, network, 1);
        let guest_ip = Ipv4Addr::new(10, 42, network, 2);
        sys::set_vnet_header_len(&fd, VNET_HEADER_LEN)
            .map_err(|error| refused("set the packet header's size", error))?;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| refused("open a socket", error.into()))?;
        let socket = socket.as_fd();
        host::close_taps().map_err(|error| refused("keep the tap apart from other networks", error))?;
        silence_ipv6(&name).map_err(|error| refused("switch IPv6 off on the tap", error))?;
        sys::set_address(socket, &name, host_ip).map_err(|error| refused("give the tap its address", error))?;
        sys::set_netmask(socket, &name, NETMASK).map_err(|error| refused("give the tap its netmask", error))?;
        sys::set_mtu(socket, &name, MTU).map_err(|error| refused("set the tap's packet size", error))?;
        sys::set_up(socket, &name).map_err(|error| refused("bring the tap up", error))?;
        Ok(Self { fd, name, host_ip, guest_ip, prefix: PREFIX_LEN, mac: GUEST_MAC, name_server: None })
    }
}

/// Before the link is up: once it is, who is at its other end is listened to.
fn silence_ipv6(name: &str) -> io::Result<()> {
    match fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1") {
        // This kernel has none.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// A tap of that name in the namespace of this thread, without an address; [`VNET_HEADER_LEN`] bytes before each packet.
pub(crate) fn open(name: &str) -> io::Result<OwnedFd> {
    let fd = rustix::fs::open(Path::new(DEVICE), OPEN, Mode::empty())?;
    sys::attach_tap(&fd, name)?;
    sys::set_vnet_header_len(&fd, VNET_HEADER_LEN)?;
    Ok(fd)
}

/// Makes a tap of that name; false when somebody has it.
pub(crate) fn attach(fd: &OwnedFd, name: &str) -> Result<bool, TapError> {
    match sys::attach_tap(fd, name) {
        Ok(()) => Ok(true),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Ok(false),
        Err(error) => Err(refused("make a tap", error)),
    }
}

pub(crate) fn open_driver() -> Result<OwnedFd, TapError> {
    rustix::fs::open(Path::new(DEVICE), OPEN, Mode::empty()).map_err(|error| match error {
        // The node can exist without the driver behind it.
        Errno::NOENT | Errno::NODEV | Errno::NXIO => TapError::NoDriver,
        other => refused("open /dev/net/tun", other.into()),
    })
}

pub(crate) fn refused(step: &'static str, source: io::Error) -> TapError {
    match source.kind() {
        io::ErrorKind::PermissionDenied => TapError::NotPermitted,
        _ => TapError::Refused { step, source },
    }
}

#[cfg(test)]
mod tests;
