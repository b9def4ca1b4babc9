//! What others do through a host that did not forward before it had to for sandboxes.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::link::Links;
use crate::netns::Namespace;
use crate::testing::{elsewhere, on_a_host};

const PORT: u16 = 80;
const PATIENCE: Duration = Duration::from_secs(5);

/// Somebody at the other end of a cable to an interface of the host's.
fn neighbour(link: &str, last: u8) -> Namespace {
    let (place, mut links) = (elsewhere(), Links::open().unwrap());
    links.make_cable((link, [2, 0, 0, 0, 1, last]), ("eth0", [2, 0, 0, 0, 2, last]), place.as_fd()).unwrap();
    links.set_up(link).unwrap();
    place
}

fn connect(from: &Namespace, to: &Namespace, address: impl Into<IpAddr>) {
    let address = SocketAddr::new(address.into(), PORT);
    let _listener = to.inside(|| TcpListener::bind(address)).unwrap();
    let until = Instant::now() + PATIENCE;
    let connect = || from.inside(|| TcpStream::connect_timeout(&address, PATIENCE));
    // A cable that was just plugged in carries nothing yet.
    while let Err(error) = connect() {
        assert!(error.kind() == ErrorKind::HostUnreachable && Instant::now() < until, "{error}");
    }
}

#[test]
fn what_a_bridge_carries_goes_on() {
    on_a_host(|_| {
        let mut links = Links::open().unwrap();
        links.make_bridge("br0").unwrap();
        links.set_up("br0").unwrap();
        let address = |last| Ipv4Addr::new(192, 0, 2, last);
        let [one, two] = [1, 2].map(|last| {
            let place = neighbour(&format!("port{last}"), last);
            links.attach(&format!("port{last}"), "br0").unwrap();
            let join = || {
                let mut links = Links::open()?;
                links.add_address("eth0", address(last), 24)?;
                links.set_up("eth0")
            };
            place.inside(join).unwrap();
            place
        });
        connect(&one, &two, address(2));
    });
}

#[test]
fn ipv6_is_forwarded_as_before() {
    on_a_host(|_| {
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        let mut links = Links::open().unwrap();
        let address = |side, last| Ipv6Addr::new(0x2001, 0xdb8, side, 0, 0, 0, 0, last);
        let [one, two] = [1, 2].map(|side: u8| {
            let (name, wide) = (format!("side{side}"), u16::from(side));
            let place = neighbour(&name, side);
            links.add_address6(&name, address(wide, 1), 64).unwrap();
            let join = || {
                let mut links = Links::open()?;
                links.add_address6("eth0", address(wide, 2), 64)?;
                links.set_up("eth0")?;
                links.add_default_route6(address(wide, 1))
            };
            place.inside(join).unwrap();
            place
        });
        connect(&one, &two, address(2, 2));
    });
}
