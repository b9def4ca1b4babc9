//! A network interface by ioctl: the guest may have no `ip` tool.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::check;

/// An interface of this network namespace.
pub(crate) struct Interface {
    socket: OwnedFd,
    name: [libc::c_char; libc::IFNAMSIZ],
}

impl Interface {
    /// Names an interface, which need not exist yet.
    pub(crate) fn named(name: &str) -> io::Result<Self> {
        if !name.is_ascii() || name.len() >= libc::IFNAMSIZ {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut field = [0; libc::IFNAMSIZ];
        for (to, from) in field.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, name: field })
    }

    /// Switches it on.
    pub(crate) fn bring_up(&self) -> io::Result<()> {
        let mut request = self.request(libc::__c_anonymous_ifr_ifru { ifru_flags: 0 });
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: SIOCGIFFLAGS succeeded, so the kernel has written this member.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        let up = libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(io::Error::other)?;
        let mut request = self.request(libc::__c_anonymous_ifr_ifru { ifru_flags: flags | up });
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    /// Gives it its address.
    pub(crate) fn set_address(&self, address: Ipv4Addr, netmask: Ipv4Addr) -> io::Result<()> {
        let mut request = self.request(libc::__c_anonymous_ifr_ifru { ifru_addr: sockaddr(address) });
        self.ioctl(libc::SIOCSIFADDR, &mut request)?;
        let mut request = self.request(libc::__c_anonymous_ifr_ifru { ifru_netmask: sockaddr(netmask) });
        self.ioctl(libc::SIOCSIFNETMASK, &mut request)
    }

    /// Sends through this gateway what no other route takes.
    pub(crate) fn add_default_route(&self, gateway: Ipv4Addr) -> io::Result<()> {
        // SAFETY: rtentry is integers, addresses and pointers; all zeroes is a valid value of each.
        let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
        route.rt_dst = sockaddr(Ipv4Addr::UNSPECIFIED);
        route.rt_genmask = sockaddr(Ipv4Addr::UNSPECIFIED);
        route.rt_gateway = sockaddr(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        // SAFETY: SIOCADDRT reads one rtentry, which lives until the call returns; its only pointer is null.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCADDRT, &raw const route) })
    }

    const fn request(&self, ifr_ifru: libc::__c_anonymous_ifr_ifru) -> libc::ifreq {
        libc::ifreq { ifr_name: self.name, ifr_ifru }
    }

    fn ioctl(&self, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: every request of this module reads or writes one ifreq, borrowed for the call.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), number, std::ptr::from_mut(request)) })
    }
}

/// An IPv4 address in the shape these ioctls take.
fn sockaddr(address: Ipv4Addr) -> libc::sockaddr {
    let mut sa_data = [0; 14];
    let octets = SocketAddrV4::new(address, 0).ip().octets();
    for (to, from) in sa_data[2..6].iter_mut().zip(octets) {
        *to = from.cast_signed();
    }
    libc::sockaddr { sa_family: AddressFamily::INET.as_raw(), sa_data }
}
