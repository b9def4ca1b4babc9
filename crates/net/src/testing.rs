//! A world for tests: a host, an internet and guests, each a namespace of its own that nothing leads out of.
//!
//! ```text
//! guest (a kernel's own stack on a tap) ── pump ── tap of the network under test ── host ── internet
//! ```

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::link::Links;
use crate::netns::{Directory, Namespace};
use crate::network::Network;
use crate::plan::{GATEWAY, GUEST, Number};
use crate::site::Site;
use crate::{sys, tap};

/// The host's address on the internet.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// The internet's router, which has every other address too.
pub(crate) const ROUTER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
pub(crate) const ONE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
pub(crate) const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 8);
pub(crate) const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
/// The metadata services of other clouds.
pub(crate) const ELSEWHERE: [Ipv4Addr; 3] =
    [Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192)];
/// What every server says to whoever connects.
pub(crate) const GREETING: &[u8; 5] = b"hello";
/// For how long something that should happen is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// A host on an internet.
pub(crate) struct World {
    pub(crate) site: Site,
    pub(crate) host: Namespace,
    pub(crate) internet: Namespace,
    _directory: tempfile::TempDir,
}

/// Runs a test on a host of its own.
pub(crate) fn on_a_host(test: impl FnOnce(&World) + Send) {
    thread::scope(|scope| {
        let body = || {
            sys::leave_network().unwrap();
            let world = World::new();
            test(&world);
            world.site.sweep().unwrap();
            assert_eq!(world.site.directory.list().unwrap(), [], "a network is left");
        };
        let result = scope.spawn(body).join();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

impl World {
    fn new() -> Self {
        let host = Namespace::own().unwrap();
        let mut links = Links::open().unwrap();
        links.set_up("lo").unwrap();
        let internet = elsewhere();
        links.make_cable(("wan", [2, 0, 0, 0, 0, 1]), ("eth0", [2, 0, 0, 0, 0, 2]), internet.as_fd()).unwrap();
        links.add_address("wan", HOST, 24).unwrap();
        links.set_up("wan").unwrap();
        links.add_default_route(ROUTER).unwrap();
        internet
            .inside(|| {
                let mut links = Links::open()?;
                links.set_up("lo")?;
                links.add_address("eth0", ROUTER, 24)?;
                links.set_up("eth0")?;
                let all = [ONE, OTHER, METADATA].into_iter().chain(ELSEWHERE);
                all.into_iter().try_for_each(|address| links.add_address("eth0", address, 32))
            })
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let site = Site::prepare(Directory::at(directory.path())).unwrap();
        Self { site, host, internet, _directory: directory }
    }

    /// A network with somebody on it.
    pub(crate) fn guest(&self) -> Guest {
        let (network, tap) = Network::make(&self.site, Number::new(0)).unwrap();
        Guest::on(Arc::new(network), tap)
    }

    /// Greets whoever connects to that address of the internet, until the test ends.
    pub(crate) fn serve(&self, address: Ipv4Addr, port: u16) {
        serve(&self.internet, address, port);
    }

    /// The same on the host.
    pub(crate) fn serve_on_host(&self, address: Ipv4Addr, port: u16) {
        serve(&self.host, address, port);
    }
}

fn serve(place: &Namespace, address: Ipv4Addr, port: u16) {
    let listener = place.inside(|| TcpListener::bind((address, port))).unwrap();
    // It ends with the process of the tests: nobody can connect once the namespaces are gone.
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || echo(stream?));
        }
    });
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(GREETING)?;
    let mut buffer = [0; 4096];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..length])?;
    }
}

/// A namespace that has no name.
pub(crate) fn elsewhere() -> Namespace {
    let make = || {
        sys::leave_network().unwrap();
        Namespace::own().unwrap()
    };
    thread::scope(|scope| scope.spawn(make).join().unwrap())
}

/// Somebody on a network, and the network.
pub(crate) struct Guest {
    pub(crate) network: Arc<Network>,
    station: Station,
}

impl Guest {
    pub(crate) fn on(network: Arc<Network>, tap: OwnedFd) -> Self {
        Self { network, station: Station::on(tap) }
    }

    /// The VM is gone, and the next one is on its network.
    pub(crate) fn give_way(self) -> (Arc<Network>, Self) {
        let before = self.leave();
        let (next, tap) = before.renew().unwrap();
        (before, Self::on(Arc::new(next), tap))
    }

    /// The VM is gone; its network stays.
    pub(crate) fn leave(self) -> Arc<Network> {
        self.station.leave();
        self.network
    }
}

impl Deref for Guest {
    type Target = Station;

    fn deref(&self) -> &Station {
        &self.station
    }
}

/// Somebody at a tap: the kernel's own stack, with the guest's addresses.
pub(crate) struct Station {
    pub(crate) place: Namespace,
    pump: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl Station {
    pub(crate) fn on(tap: OwnedFd) -> Self {
        let place = elsewhere();
        let inner = place
            .inside(|| {
                let inner = tap::open("eth0")?;
                let mut links = Links::open()?;
                links.set_up("lo")?;
                links.set_hardware_address("eth0", tap::GUEST_MAC)?;
                links.add_address("eth0", GUEST, 24)?;
                links.set_up("eth0")?;
                links.add_default_route(GATEWAY)?;
                Ok(inner)
            })
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let pump = thread::spawn(move || pump(&tap, &inner, &stopping));
        Self { place, pump, stop }
    }

    /// Connects and reads the greeting.
    pub(crate) fn connect(&self, address: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
        self.place.inside(|| {
            let mut stream = TcpStream::connect_timeout(&SocketAddr::from((address, port)), PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut said = [0; GREETING.len()];
            stream.read_exact(&mut said)?;
            assert_eq!(&said, GREETING);
            Ok(stream)
        })
    }

    pub(crate) fn reaches(&self, address: Ipv4Addr, port: u16) -> bool {
        match self.connect(address, port) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "who may not is told at once: {error}");
                false
            }
        }
    }

    pub(crate) fn udp(&self) -> UdpSocket {
        self.place.inside(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap()
    }

    pub(crate) fn leave(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.pump.join().unwrap();
    }
}

/// Carries frames both ways; both ends keep their headers of the same length.
fn pump(one: &OwnedFd, two: &OwnedFd, stop: &AtomicBool) {
    let mut frame = vec![0; 70 << 10];
    let moment = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    while !stop.load(Ordering::Relaxed) {
        let mut ends = [PollFd::new(one, PollFlags::IN), PollFd::new(two, PollFlags::IN)];
        if poll(&mut ends, Some(&moment)).is_err() {
            continue;
        }
        for (from, to) in [(one, two), (two, one)] {
            while let Ok(length) = rustix::io::read(from, &mut frame) {
                // A frame that cannot be delivered is lost, as on any line.
                if rustix::io::write(to, &frame[..length]).is_err() {
                    break;
                }
            }
        }
    }
}
