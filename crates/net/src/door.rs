//! An address that leads to one sandbox, for as long as somebody holds it.
//!
//! Published clients look for their sandbox at [`GUEST`], in the network that they are in themselves. So that is an address
//! of this network for so long, on an interface that goes with its descriptor: a tap that nobody reads. Whoever is killed
//! leaves nothing. It is the tap of the plain network whose guest has that address, so one excludes the other by its name.
//!
//! Whoever connects is believed to be the sandbox's owner, so nobody from elsewhere may: the listener is bound to that
//! interface. What this network says to its own address comes by the interface that has it, and nothing else does.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::link::Links;
use crate::plan::GUEST;
use crate::sys;
use crate::tap::{PREFIX, TapError, attach, open_driver, refused};

/// How many may wait to be let in.
const BACKLOG: i32 = 128;

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Somebody else holds the address.
    #[error("{GUEST} leads to another VM already")]
    InUse,
    /// The address cannot be had.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The address is there, and its port is not to be had.
    #[error("cannot listen on {at}")]
    Listen {
        /// Where.
        at: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// A listener, and the address that it listens on.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    /// What the address hangs on, unless it was there before.
    _tap: Option<OwnedFd>,
}

impl Door {
    /// Takes that address if it is [`GUEST`], which is nobody's otherwise, and listens there.
    ///
    /// # Errors
    /// When somebody else has it, or this process may not.
    pub fn open(at: SocketAddr) -> Result<Self, DoorError> {
        let failed = |source| DoorError::Listen { at, source };
        if at.ip() != GUEST {
            return Ok(Self { listener: TcpListener::bind(at).map_err(failed)?, _tap: None });
        }
        let name = format!("{PREFIX}0");
        let tap = take_address(&name)?;
        Ok(Self { listener: listen(at, &name).map_err(failed)?, _tap: Some(tap) })
    }

    /// Where who wants to the sandbox comes; for as long as the door is there.
    #[must_use]
    pub const fn listener(&self) -> &TcpListener {
        &self.listener
    }
}

fn take_address(name: &str) -> Result<OwnedFd, DoorError> {
    let fd = open_driver()?;
    if !attach(&fd, name)? {
        return Err(DoorError::InUse);
    }
    let taken = Links::open().and_then(|mut links| {
        links.add_address(name, GUEST, 32)?;
        links.set_up(name)?;
        // Whatever a network says to itself goes by loopback, which one that was just made does not have up.
        links.set_up("lo")
    });
    taken.map_err(|error| refused("take the guest's address", error))?;
    Ok(fd)
}

fn listen(at: SocketAddr, interface: &str) -> io::Result<TcpListener> {
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Connections of the one before, which are over, are not waited for.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sys::only_from(socket.as_fd(), interface)?;
    rustix::net::bind(&socket, &at)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;
    use crate::testing::{HOST, World, on_a_host};

    const AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(GUEST), 8888);

    fn connect() -> io::Result<TcpStream> {
        TcpStream::connect_timeout(&AT, Duration::from_millis(500))
    }

    #[test]
    fn the_address_is_ones_own_and_goes_with_it() {
        on_a_host(|_| {
            let door = Door::open(AT).unwrap();
            let mut stream = connect().unwrap();
            assert!(matches!(Door::open(AT), Err(DoorError::InUse)), "one at a time");
            let beside = crate::Tap::create().unwrap();
            assert_ne!(beside.guest_ip, GUEST, "nor does a VM on a plain tap get it");
            drop(door);
            stream.read_to_end(&mut Vec::new()).unwrap_err();
            connect().unwrap_err();
            assert!(!Links::open().unwrap().has("forkd-tap0").unwrap(), "nothing is left");
            let again = Door::open(AT).unwrap();
            connect().unwrap();
            drop(again);
        });
    }

    #[test]
    fn nobody_from_elsewhere_comes_in() {
        on_a_host(|world: &World| {
            let _door = Door::open(AT).unwrap();
            let from_outside = world.internet.inside(|| {
                Links::open()?.add_default_route(HOST)?;
                connect()
            });
            from_outside.expect_err("it is this host's own");
            connect().unwrap();
        });
    }

    #[test]
    fn another_address_is_only_listened_on() {
        let door = Door::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = door.listener().local_addr().unwrap();
        TcpStream::connect(at).unwrap();
        assert!(matches!(Door::open(at), Err(DoorError::Listen { .. })));
    }
}
