//! Real taps, in a network namespace of the test's own: the test starts itself again below `unshare`.

use std::net::UdpSocket;
use std::process::Command;

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

/// The payload of the next frame with this EtherType; the host also sends IPv6 chatter of its own.
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
