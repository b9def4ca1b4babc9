//! Real taps, in a network namespace of the test's own: the test starts itself again below `unshare`.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::*;

const INSIDE: &str = "FORKD_TEST_IN_NETNS";

/// Runs `body` in a namespace where nobody else's interfaces are.
fn in_private_network(test: &str, body: fn()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let name = format!("tap::tests::{test}");
    let output = Command::new("unshare")
        .args(["--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", &name])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{complained}");
}

fn exists(name: &str) -> bool {
    // Unlike /sys, which belongs to the namespace that mounted it, this shows the caller's own interfaces.
    let interfaces = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    interfaces.lines().any(|line| line.trim_start().starts_with(&format!("{name}:")))
}

#[test]
fn each_tap_takes_the_next_network_and_leaves_nothing() {
    in_private_network("each_tap_takes_the_next_network_and_leaves_nothing", || {
        let first = Tap::create().unwrap();
        let second = Tap::create().unwrap();
        assert_eq!((first.name.as_str(), first.guest_ip), ("forkd-tap0", Ipv4Addr::new(10, 42, 0, 2)));
        assert_eq!((second.name.as_str(), second.host_ip), ("forkd-tap1", Ipv4Addr::new(10, 42, 1, 1)));
        drop(first);
        assert!(!exists("forkd-tap0") && exists("forkd-tap1"));
        let again = Tap::create().unwrap();
        assert_eq!(again.name, "forkd-tap0", "a freed network is used again");
        drop((second, again));
        assert!(!exists("forkd-tap0") && !exists("forkd-tap1"));
    });
}

#[test]
fn the_host_talks_to_the_guest_through_the_tap() {
    in_private_network("the_host_talks_to_the_guest_through_the_tap", || {
        let tap = Tap::create().unwrap();
        let socket = UdpSocket::bind((tap.host_ip, 0)).expect("the host has the address");
        socket.send_to(b"anybody?", (tap.guest_ip, 9)).expect("the link is up and has a route");
        let arp = read_frame_of_type(&tap, 0x0806);
        let asked: [u8; 4] = arp[24..28].try_into().unwrap();
        assert_eq!(Ipv4Addr::from(asked), tap.guest_ip, "the host asks who has the guest's address");
    });
}

#[test]
fn the_host_takes_no_ipv6_from_the_guest() {
    in_private_network("the_host_takes_no_ipv6_from_the_guest", || {
        let tap = Tap::create().unwrap();
        let speaks = |name: &str| std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default().contains(name);
        assert!(!speaks(&tap.name), "it has an address of its own there, and listens for routers");
        let off = std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", tap.name));
        assert!(off.is_err() || off.unwrap().trim() == "1");
    });
}

/// Where the host forwards for others and no daemon ever was.
#[test]
fn nothing_is_forwarded_from_one_guest_to_another() {
    in_private_network("nothing_is_forwarded_from_one_guest_to_another", || {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let (one, other) = (Tap::create().unwrap(), Tap::create().unwrap());
        let socket = UdpSocket::bind((one.host_ip, 0)).unwrap();
        socket.send_to(b"anybody?", (one.guest_ip, 9)).unwrap();
        let gateway: [u8; 6] = read_frame_of_type(&one, 0x0806)[8..14].try_into().unwrap();
        let reaches = || {
            say(&one, gateway, other.guest_ip);
            // The host has to ask for the other guest before it can pass anything on.
            next_frame(&other, Duration::from_millis(300)).is_some_and(|frame| frame[12..14] == [0x08, 0x06])
        };
        assert!(!reaches());
        let mut open = crate::nft::Transaction::default();
        open.replace_table();
        crate::nft::Nft::open().unwrap().commit(open).unwrap();
        assert!(reaches(), "it is the rules that keep them apart");
    });
}

/// A datagram from the guest, through its gateway.
fn say(tap: &Tap, gateway: [u8; 6], to: Ipv4Addr) {
    let mut ip = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    ip.extend(tap.guest_ip.octets());
    ip.extend(to.octets());
    let sum: u32 = ip.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    // Port 9 to port 9, no checksum, nothing in it.
    ip.extend([0, 9, 0, 9, 0, 8, 0, 0]);
    let mut frame = vec![0; usize::try_from(VNET_HEADER_LEN).unwrap()];
    frame.extend(gateway);
    frame.extend(GUEST_MAC);
    frame.extend([0x08, 0x00]);
    frame.extend(ip);
    rustix::io::write(&tap.fd, &frame).unwrap();
}

/// The next frame, from its Ethernet header on, if one comes in time.
fn next_frame(tap: &Tap, limit: Duration) -> Option<Vec<u8>> {
    let mut ready = [PollFd::new(&tap.fd, PollFlags::IN)];
    let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
    if rustix::event::poll(&mut ready, Some(&limit)).unwrap() == 0 {
        return None;
    }
    let mut frame = [0; 2048];
    let length = rustix::io::read(&tap.fd, &mut frame).unwrap();
    Some(frame[usize::try_from(VNET_HEADER_LEN).unwrap()..length].to_vec())
}

/// The payload of the next frame with this EtherType.
fn read_frame_of_type(tap: &Tap, ethertype: u16) -> Vec<u8> {
    let header = usize::try_from(VNET_HEADER_LEN).unwrap();
    for _ in 0..100 {
        let mut ready = [PollFd::new(&tap.fd, PollFlags::IN)];
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut ready, Some(&limit)), Ok(1), "no frame came");
        let mut frame = [0; 2048];
        let length = rustix::io::read(&tap.fd, &mut frame).unwrap();
        let ethernet = &frame[header..length];
        if ethernet[12..14] == ethertype.to_be_bytes() {
            return ethernet[14..].to_vec();
        }
    }
    panic!("100 frames and none of type {ethertype:#06x}");
}

#[test]
fn all_networks_in_use_is_said() {
    in_private_network("all_networks_in_use_is_said", || {
        let taps: Vec<Tap> = (0..256).map(|_| Tap::create().unwrap()).collect();
        assert!(matches!(Tap::create(), Err(TapError::AllInUse)));
        assert_eq!(taps[255].guest_ip, Ipv4Addr::new(10, 42, 255, 2));
    });
}

#[test]
fn a_process_without_the_right_is_told_which() {
    let error = refused("make a tap", io::Error::from_raw_os_error(libc::EPERM));
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
}
