//! Interfaces, addresses, routes and rates (`rtnetlink`): the few messages that a network of ours is made of.
//!
//! A connection speaks of the namespace that it was opened in, wherever it is used.

use std::io;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice};

use crate::netlink::{Attributes, CREATE, EXCLUSIVE, Message, Socket, find};

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const NEW_NEIGHBOUR: u16 = 28;
const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;
const REPLACE: u16 = 0x100;

const INET: u8 = 2;
#[cfg(test)]
const INET6: u8 = 10;
const UP: u32 = 1;
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const HARDWARE_ADDRESS: u16 = 1;
const NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const NAMESPACE_FD: u16 = 28;
const PERMANENT: u16 = 0x80;
const ROOT: u32 = 0xFFFF_FFFF;
const ETHERNET: u8 = 1;
/// How long a packet may wait before it is dropped, and how long a pause a burst may make up for.
const QUEUED: u64 = 50;
const BURST: u64 = 20;
/// A burst holds the largest packet that hardware is asked to take apart.
const LEAST_BURST: u64 = 128 << 10;

/// The interfaces of one namespace.
#[derive(Debug)]
pub(crate) struct Links {
    socket: Socket,
    /// Asks for interfaces by their names.
    finder: OwnedFd,
}

impl Links {
    /// Those of the namespace this thread is in.
    pub(crate) fn open() -> io::Result<Self> {
        let finder = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket: Socket::open(None)?, finder })
    }

    /// The number of an interface; [`io::ErrorKind::NotFound`] or `ENODEV` when there is none.
    pub(crate) fn index(&self, name: &str) -> io::Result<u32> {
        Ok(netdevice::name_to_index(&self.finder, name)?)
    }

    /// Whether there is such an interface.
    pub(crate) fn has(&self, name: &str) -> io::Result<bool> {
        match netdevice::name_to_index(&self.finder, name) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::NODEV) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a cable: one end here, the other in another namespace, each a name and a hardware address. Neither is up: an
    /// end cannot be before there are two.
    pub(crate) fn make_cable(
        &mut self,
        here: (&str, [u8; 6]),
        there: (&str, [u8; 6]),
        namespace: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let fd = namespace.as_raw_fd().to_ne_bytes();
        let peer = Attributes::behind(&link_header(0, 0)).put_str(NAME, there.0).put(HARDWARE_ADDRESS, &there.1);
        let peer = peer.put(NAMESPACE_FD, &fd);
        let info = Attributes::default().put_str(1, "veth").put_all(2, &Attributes::default().put_all(1, &peer));
        let message = Message::new(NEW_LINK, CREATE | EXCLUSIVE, &link_header(0, 0));
        self.socket.ask(message.put_str(NAME, here.0).put(HARDWARE_ADDRESS, &here.1).put_all(LINK_INFO, &info))
    }

    /// Says for good who has that address on that link. The kernel then neither asks for it nor believes who tells it,
    /// and does not count it among those that all namespaces together may know.
    pub(crate) fn add_neighbour(&mut self, name: &str, address: Ipv4Addr, hardware: [u8; 6]) -> io::Result<()> {
        let mut header = [0; 12];
        header[0] = INET;
        header[4..8].copy_from_slice(&self.index(name)?.to_ne_bytes());
        header[8..10].copy_from_slice(&PERMANENT.to_ne_bytes());
        let message = Message::new(NEW_NEIGHBOUR, CREATE | REPLACE, &header);
        self.socket.ask(message.put(1, &address.octets()).put(2, &hardware))
    }

    /// Who is known on all links: address, hardware address, and whether for good.
    #[cfg(test)]
    pub(crate) fn neighbours(&mut self) -> io::Result<Vec<(Ipv4Addr, Vec<u8>, bool)>> {
        const GET_NEIGHBOUR: u16 = 30;
        let mut neighbours = Vec::new();
        let mut header = [0; 12];
        header[0] = INET;
        self.socket.list(Message::new(GET_NEIGHBOUR, 0, &header), 0, |body| {
            let attributes = body.get(12..).unwrap_or_default();
            let address = find(attributes, 1).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(Ipv4Addr::from);
            let forever = body.get(8..10) == Some(&PERMANENT.to_ne_bytes());
            neighbours.extend(address.map(|it| (it, find(attributes, 2).unwrap_or_default().to_vec(), forever)));
        })?;
        Ok(neighbours)
    }

    pub(crate) fn remove(&mut self, name: &str) -> io::Result<()> {
        self.socket.ask(Message::new(DELETE_LINK, 0, &link_header(0, 0)).put_str(NAME, name))
    }

    pub(crate) fn set_up(&mut self, name: &str) -> io::Result<()> {
        let index = self.index(name)?;
        self.socket.ask(Message::new(NEW_LINK, 0, &link_header(index, UP)))
    }

    pub(crate) fn add_address(&mut self, name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mut header = [INET, prefix, 0, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&self.index(name)?.to_ne_bytes());
        let message = Message::new(NEW_ADDRESS, CREATE | EXCLUSIVE, &header);
        self.socket.ask(message.put(2, &address.octets()).put(1, &address.octets()))
    }

    #[cfg(test)]
    pub(crate) fn add_address6(&mut self, name: &str, address: std::net::Ipv6Addr, prefix: u8) -> io::Result<()> {
        // At once: nobody is asked whether he has it.
        const WITHOUT_ASKING: u8 = 2;
        let mut header = [INET6, prefix, WITHOUT_ASKING, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&self.index(name)?.to_ne_bytes());
        self.socket.ask(Message::new(NEW_ADDRESS, CREATE | EXCLUSIVE, &header).put(1, &address.octets()))
    }

    #[cfg(test)]
    pub(crate) fn add_default_route6(&mut self, gateway: std::net::Ipv6Addr) -> io::Result<()> {
        let header = [INET6, 0, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
        self.socket.ask(Message::new(NEW_ROUTE, CREATE | EXCLUSIVE, &header).put(5, &gateway.octets()))
    }

    #[cfg(test)]
    pub(crate) fn make_bridge(&mut self, name: &str) -> io::Result<()> {
        let info = Attributes::default().put_str(1, "bridge");
        let message = Message::new(NEW_LINK, CREATE | EXCLUSIVE, &link_header(0, 0));
        self.socket.ask(message.put_str(NAME, name).put_all(LINK_INFO, &info))
    }

    #[cfg(test)]
    pub(crate) fn attach(&mut self, name: &str, bridge: &str) -> io::Result<()> {
        const MASTER: u16 = 10;
        let (index, bridge) = (self.index(name)?, self.index(bridge)?);
        self.socket.ask(Message::new(NEW_LINK, 0, &link_header(index, 0)).put(MASTER, &bridge.to_ne_bytes()))
    }

    #[cfg(test)]
    pub(crate) fn set_hardware_address(&mut self, name: &str, address: [u8; 6]) -> io::Result<()> {
        let index = self.index(name)?;
        self.socket.ask(Message::new(NEW_LINK, 0, &link_header(index, 0)).put(HARDWARE_ADDRESS, &address))
    }

    /// The names of all interfaces.
    #[cfg(test)]
    pub(crate) fn names(&mut self) -> io::Result<Vec<String>> {
        const GET_LINK: u16 = 18;
        let mut names = Vec::new();
        self.socket.list(Message::new(GET_LINK, 0, &link_header(0, 0)), LINK_HEADER, |body| {
            let name = find(body, NAME).and_then(|name| std::ffi::CStr::from_bytes_until_nul(name).ok());
            names.extend(name.map(|name| name.to_string_lossy().into_owned()));
        })?;
        Ok(names)
    }

    /// Where all routes lead to, those to the host's own addresses included.
    #[cfg(test)]
    pub(crate) fn routes(&mut self) -> io::Result<Vec<Ipv4Addr>> {
        const GET_ROUTE: u16 = 26;
        const ROUTE_HEADER: usize = 12;
        let mut routes = Vec::new();
        let mut header = [0; ROUTE_HEADER];
        header[0] = INET;
        self.socket.list(Message::new(GET_ROUTE, 0, &header), ROUTE_HEADER, |body| {
            routes.extend(find(body, 1).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(Ipv4Addr::from));
        })?;
        Ok(routes)
    }

    /// Everything that is not here is there.
    pub(crate) fn add_default_route(&mut self, gateway: Ipv4Addr) -> io::Result<()> {
        const MAIN: u8 = 254;
        const STATIC: u8 = 4;
        const UNICAST: u8 = 1;
        let header = [INET, 0, 0, 0, MAIN, STATIC, 0, UNICAST, 0, 0, 0, 0];
        self.socket.ask(Message::new(NEW_ROUTE, CREATE | EXCLUSIVE, &header).put(5, &gateway.octets()))
    }

    /// All IPv4 addresses of the namespace.
    pub(crate) fn addresses(&mut self) -> io::Result<Vec<Ipv4Addr>> {
        let mut addresses = Vec::new();
        let ask = Message::new(GET_ADDRESS, 0, &[INET, 0, 0, 0, 0, 0, 0, 0]);
        self.socket.list(ask, ADDRESS_HEADER, |body| {
            let address = find(body, 2).or_else(|| find(body, 1)).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
            addresses.extend(address.map(Ipv4Addr::from));
        })?;
        Ok(addresses)
    }

    /// No more than so many bytes in a second leave by that interface; `None` is as many as there are.
    pub(crate) fn set_rate(&mut self, name: &str, rate: Option<NonZeroU32>) -> io::Result<()> {
        let index = self.index(name)?;
        let Some(rate) = rate else {
            return match self.socket.ask(Message::new(DELETE_QDISC, 0, &traffic_header(index))) {
                // There was no limit.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => Ok(()),
                other => other,
            };
        };
        let bytes = |millis: u64| (u64::from(rate.get()) * millis / 1000).max(LEAST_BURST);
        let short = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let burst = short(bytes(BURST));
        let mut parameters = [0; 36];
        parameters[1] = ETHERNET;
        parameters[8..12].copy_from_slice(&rate.get().to_ne_bytes());
        parameters[24..28].copy_from_slice(&short(bytes(BURST) + bytes(QUEUED)).to_ne_bytes());
        let options = Attributes::default().put(1, &parameters).put(6, &burst.to_ne_bytes());
        let message = Message::new(NEW_QDISC, CREATE | REPLACE, &traffic_header(index));
        self.socket.ask(message.put_str(1, "tbf").put_all(2, &options))
    }
}

impl AsFd for Links {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.finder.as_fd()
    }
}

fn link_header(index: u32, flags: u32) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn traffic_header(index: u32) -> [u8; 20] {
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[12..16].copy_from_slice(&ROOT.to_ne_bytes());
    header
}
