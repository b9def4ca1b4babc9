//! The `ioctl`s that make and configure an interface, a socket's tie to one, and a thread's way out of its network; the
//! only unsafe code of this crate.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libc::{c_int, c_short, ifreq};

/// `IFF_TUN_EXCL` makes an existing name an error (`EBUSY`) where the kernel would otherwise attach to it.
#[expect(clippy::cast_possible_truncation, reason = "the kernel reads these 16 bits as flags")]
const TAP_FLAGS: c_short = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL) as c_short;

/// Makes a new tap behind `fd`, an open `/dev/net/tun`; it lives as long as the descriptor.
pub(crate) fn attach_tap(fd: &impl AsFd, name: &str) -> io::Result<()> {
    let mut request = named(name)?;
    request.ifr_ifru.ifru_flags = TAP_FLAGS;
    control(fd.as_fd(), libc::TUNSETIFF, &mut request)
}

/// Sets how many bytes precede each packet.
pub(crate) fn set_vnet_header_len(fd: &impl AsFd, len: i32) -> io::Result<()> {
    let len: c_int = len;
    // SAFETY: the kernel reads one c_int through the pointer, which `len` outlives.
    let status = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) };
    checked(status)
}

pub(crate) fn set_address(socket: BorrowedFd<'_>, name: &str, address: Ipv4Addr) -> io::Result<()> {
    let mut request = named(name)?;
    request.ifr_ifru.ifru_addr = socket_address(address);
    control(socket, libc::SIOCSIFADDR, &mut request)
}

pub(crate) fn set_netmask(socket: BorrowedFd<'_>, name: &str, netmask: Ipv4Addr) -> io::Result<()> {
    let mut request = named(name)?;
    request.ifr_ifru.ifru_netmask = socket_address(netmask);
    control(socket, libc::SIOCSIFNETMASK, &mut request)
}

pub(crate) fn set_mtu(socket: BorrowedFd<'_>, name: &str, mtu: i32) -> io::Result<()> {
    let mut request = named(name)?;
    request.ifr_ifru.ifru_mtu = mtu;
    control(socket, libc::SIOCSIFMTU, &mut request)
}

pub(crate) fn set_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = named(name)?;
    control(socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has just written this field of the union; any bits are a valid c_short.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    #[expect(clippy::cast_possible_truncation, reason = "IFF_UP is bit 0")]
    let up = libc::IFF_UP as c_short;
    request.ifr_ifru.ifru_flags = flags | up;
    control(socket, libc::SIOCSIFFLAGS, &mut request)
}

/// A request about one interface, everything but its name zero.
fn named(name: &str) -> io::Result<ifreq> {
    // SAFETY: `ifreq` is plain data for which all zeroes are valid, its pointer field included.
    let mut request: ifreq = unsafe { std::mem::zeroed() };
    // One byte stays zero: the kernel wants the name terminated.
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

/// `sockaddr_in` laid out by hand: family, port 0, then the address in network order.
fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    const FAMILY: libc::sa_family_t = 2;
    const _: () = assert!(libc::AF_INET == 2);
    let mut data = [0; 14];
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = from.cast_signed();
    }
    libc::sockaddr { sa_family: FAMILY, sa_data: data }
}

fn control(fd: BorrowedFd<'_>, operation: libc::Ioctl, request: &mut ifreq) -> io::Result<()> {
    // SAFETY: every operation passed here takes a pointer to one `ifreq`, and `request` is one, borrowed exclusively
    // for the call; the kernel keeps no reference to it.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), operation, std::ptr::from_mut(request)) };
    checked(status)
}

/// Has a socket hear only what comes by that interface.
pub(crate) fn only_from(socket: BorrowedFd<'_>, interface: &str) -> io::Result<()> {
    let length = libc::socklen_t::try_from(interface.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes through the pointer, which `interface` outlives, and keeps none of them.
    let status = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, interface.as_ptr().cast(), length)
    };
    checked(status)
}

/// Gives this thread a network namespace of its own, which nobody else is in.
pub(crate) fn leave_network() -> io::Result<()> {
    // SAFETY: NEWNET changes which network this thread sees; it leaves its descriptors shared with the other threads,
    // which is what the function's contract is about.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?)
}

fn checked(status: c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
