use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::*;
use crate::plan::GUEST;
use crate::testing::{GREETING, Guest, HOST, METADATA, ONE, OTHER, World, on_a_host};

fn policy(text: &str) -> Egress {
    text.parse().unwrap()
}

/// A policy of one kind, and what can be reached by it.
fn allow(guest: &Guest, text: &str) {
    guest.network.set_egress(&policy(text)).unwrap();
}

fn serve_everywhere(world: &World) {
    for address in [ONE, OTHER, METADATA] {
        world.serve(address, 80);
        world.serve(address, 81);
    }
    world.serve_on_host(HOST, 80);
}

#[test]
fn nothing_is_reached_by_default_and_every_attempt_is_seen() {
    on_a_host(|world| {
        serve_everywhere(world);
        let guest = world.guest();
        for address in [ONE, METADATA, HOST, guest.network.number().host(), GATEWAY] {
            assert!(!guest.reaches(address, 80), "{address}");
        }
        guest.udp().send_to(b"x", (OTHER, 5000)).unwrap();
        let seen = |report: &Report| report.attempts.iter().any(|attempt| attempt.port == Some(5000));
        let until = Instant::now() + Duration::from_secs(5);
        while !seen(&guest.network.report().unwrap()) && Instant::now() < until {
            std::thread::yield_now();
        }
        let report = guest.network.report().unwrap();
        assert_eq!(report.denied.packets, 6, "{report:?}");
        assert_eq!((report.sent, report.received, report.spoofed), Default::default());
        let metadata = report.attempts.iter().find(|attempt| attempt.address == METADATA).unwrap();
        assert_eq!((metadata.protocol, metadata.port, metadata.packets), (6, Some(80), 1));
        assert!(report.attempts.iter().any(|attempt| attempt.protocol == 17 && attempt.port == Some(5000)));
        assert_eq!(report.attempts.len(), 6);
        guest.leave();
    });
}

#[test]
fn a_list_lets_exactly_what_it_names_through() {
    on_a_host(|world| {
        serve_everywhere(world);
        let guest = world.guest();
        allow(&guest, "198.51.100.7:80,tcp:198.51.100.8:79-81,udp:198.51.100.7:81");
        assert!(guest.reaches(ONE, 80));
        assert!(!guest.reaches(ONE, 81), "only UDP is");
        assert!(guest.reaches(OTHER, 80) && guest.reaches(OTHER, 81));
        assert!(!guest.reaches(METADATA, 80) && !guest.reaches(HOST, 80));
        allow(&guest, "198.51.100.0/29");
        assert!(guest.reaches(ONE, 81) && !guest.reaches(OTHER, 80));
        let report = guest.network.report().unwrap();
        assert!(report.sent.packets >= 12 && report.received.bytes > 3 * GREETING.len() as u64, "{report:?}");
        guest.leave();
    });
}

#[test]
fn everything_is_less_than_what_is_named() {
    on_a_host(|world| {
        serve_everywhere(world);
        let (guest, neighbour) = (world.guest(), world.guest());
        let beside = neighbour.network.number();
        neighbour.place.inside(|| std::net::TcpListener::bind((GUEST, 80))).unwrap();
        for text in ["all", "0.0.0.0/0", "128.0.0.0/1"] {
            allow(&guest, text);
            assert!(guest.reaches(ONE, 80) && guest.reaches(OTHER, 81));
            for forbidden in [METADATA, HOST, guest.network.number().host(), beside.outside(), beside.host(), GATEWAY] {
                assert!(!guest.reaches(forbidden, 80), "{text}: {forbidden}");
            }
        }
        allow(&guest, "169.254.169.254:80,203.0.113.1:80");
        assert!(guest.reaches(METADATA, 80) && guest.reaches(HOST, 80));
        assert!(!guest.reaches(METADATA, 81) && !guest.reaches(ONE, 80));
        allow(&guest, "169.254.0.0/16");
        assert!(guest.reaches(METADATA, 81) && !guest.reaches(HOST, 80));
        assert!(!neighbour.reaches(METADATA, 80), "what one named is not another's");
        guest.leave();
        neighbour.leave();
    });
}

/// Whether the connection still carries something there and back.
fn lives(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut back = [0; 4];
    stream.write_all(b"ping").and_then(|()| stream.read_exact(&mut back)).is_ok()
}

#[test]
fn a_change_takes_effect_on_the_next_packet() {
    on_a_host(|world| {
        serve_everywhere(world);
        let guest = world.guest();
        allow(&guest, "198.51.100.0/24");
        let (one, other) = (guest.connect(ONE, 80).unwrap(), guest.connect(OTHER, 80).unwrap());
        assert!(lives(&one) && lives(&other));
        allow(&guest, "198.51.100.7");
        assert!(lives(&one), "what is still allowed goes on");
        assert!(!lives(&other), "what is no longer allowed is cut");
        allow(&guest, "none");
        assert!(!lives(&one));
        guest.leave();
    });
}

#[test]
fn who_pretends_to_be_another_is_not_heard() {
    on_a_host(|world| {
        serve_everywhere(world);
        let guest = world.guest();
        allow(&guest, "all");
        assert!(guest.reaches(ONE, 80));
        let other = std::net::Ipv4Addr::new(10, 42, 0, 9);
        guest.place.inside(|| Links::open()?.add_address("eth0", other, 24)).unwrap();
        let socket = guest.place.inside(|| UdpSocket::bind((other, 0))).unwrap();
        socket.send_to(b"x", (ONE, 80)).unwrap();
        await_count(&guest, |report| report.spoofed.packets);
        let spoofed = guest.network.report().unwrap().spoofed.packets;
        guest.place.inside(|| Links::open()?.set_hardware_address("eth0", [2, 0, 0, 0, 0, 9])).unwrap();
        guest.udp().send_to(b"x", (ONE, 80)).unwrap();
        await_count(&guest, |report| report.spoofed.packets - spoofed);
        guest.leave();
    });
}

#[test]
fn ipv6_is_counted_and_goes_nowhere() {
    on_a_host(|world| {
        let guest = world.guest();
        allow(&guest, "all");
        // The guest's kernel looks for neighbours and routers by itself as soon as its interface is up.
        await_count(&guest, |report| report.ipv6.packets);
        assert_eq!(guest.network.report().unwrap().sent.packets, 0);
        guest.leave();
    });
}

fn await_count(guest: &Guest, count: impl Fn(&Report) -> u64) {
    let until = Instant::now() + Duration::from_secs(10);
    while count(&guest.network.report().unwrap()) == 0 {
        assert!(Instant::now() < until, "{:?}", guest.network.report());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_network_is_as_good_as_new_once_its_guest_is_gone() {
    on_a_host(|world| {
        serve_everywhere(world);
        let guest = world.guest();
        guest.network.set_limits(&Limits { packets_per_second: Some(10_000), ..Limits::default() }).unwrap();
        allow(&guest, "198.51.100.7,203.0.113.1");
        assert!(guest.reaches(ONE, 80) && guest.reaches(HOST, 80) && !guest.reaches(OTHER, 80));
        let in_use = guest.network.renew().unwrap_err();
        assert!(in_use.to_string().contains("tap"), "{in_use}");
        let network = guest.leave();
        let number = network.number();
        let tap = network.renew().unwrap();
        let next = Guest::on(network, tap);
        assert_eq!((next.network.number(), next.network.egress()), (number, Egress::None));
        assert_eq!(next.network.limits(), Limits::default());
        let report = next.network.report().unwrap();
        assert_eq!(Report { ipv6: report.ipv6, ..Report::default() }, report, "nothing is left of the last");
        assert!(!next.reaches(ONE, 80) && !next.reaches(HOST, 80));
        next.leave();
    });
}

#[test]
fn what_nobody_uses_is_swept_and_what_is_used_goes_on() {
    on_a_host(|world| {
        serve_everywhere(world);
        let (guest, idle) = (world.guest(), world.guest());
        allow(&guest, "198.51.100.7:80");
        assert_eq!(world.site.sweep().unwrap(), 0);
        let gone = idle.leave().number();
        fs::write(world.site.directory.path().join("forkd-child-77"), "").unwrap();
        assert_eq!(world.site.sweep().unwrap(), 2, "one without a tap, one that never was");
        assert!(guest.reaches(ONE, 80));
        Network::adopt(&world.site, gone, Egress::None, Limits::default()).unwrap_err();
        let again = world.guest();
        assert_eq!(again.network.number(), gone, "its number is free at once");
        again.leave();
        let number = guest.network.number();
        guest.leave();
        assert_eq!(world.site.sweep().unwrap(), 2);
        assert!(!world.site.directory.path().join(number.namespace()).exists());
    });
}

#[test]
fn a_network_is_adopted_as_it_is() {
    on_a_host(|world| {
        serve_everywhere(world);
        let (network, tap) = Network::make(&world.site, Number::new(0)).unwrap();
        let (number, egress) = (network.number(), policy("198.51.100.7:80"));
        network.set_egress(&egress).unwrap();
        drop(network);
        let adopted = Network::adopt(&world.site, number, egress.clone(), Limits::default()).unwrap();
        let guest = Guest::on(Arc::new(adopted), tap);
        assert_eq!(guest.network.egress(), egress);
        assert!(guest.reaches(ONE, 80) && !guest.reaches(OTHER, 80));
        allow(&guest, "198.51.100.8:80");
        assert!(!guest.reaches(ONE, 80) && guest.reaches(OTHER, 80));
        // Who was killed between writing a policy down and putting it in force.
        let network = guest.leave();
        let tap = network.renew().unwrap();
        drop(network);
        let adopted = Network::adopt(&world.site, number, policy("198.51.100.7:80"), Limits::default()).unwrap();
        let guest = Guest::on(Arc::new(adopted), tap);
        assert!(guest.reaches(ONE, 80) && !guest.reaches(OTHER, 80));
        guest.leave();
    });
}

#[test]
fn limits_hold() {
    on_a_host(|world| {
        serve_everywhere(world);
        let guest = world.guest();
        allow(&guest, "all");
        let limits = Limits { connections: 5, ..Limits::default() };
        guest.network.set_limits(&limits).unwrap();
        let open: Vec<_> = (0..5).map(|_| guest.connect(ONE, 80).unwrap()).collect();
        guest.udp().send_to(b"x", (ONE, 80)).unwrap();
        await_count(&guest, |report| report.limited.packets);
        assert!(open.iter().all(lives), "those that are open stay so");
        drop(open);
        let limited = guest.network.report().unwrap().limited.packets;
        guest.network.set_limits(&Limits { packets_per_second: Some(50), ..Limits::default() }).unwrap();
        let socket = guest.udp();
        (0..500).for_each(|_| drop(socket.send_to(b"x", (ONE, 80))));
        await_count(&guest, |report| report.limited.packets - limited);
        guest.leave();
    });
}

#[test]
fn bytes_take_the_time_they_are_given() {
    const RATE: u32 = 512 << 10;
    on_a_host(|world| {
        serve_everywhere(world);
        let guest = world.guest();
        allow(&guest, "all");
        let limits = Limits { out_bytes_per_second: Some(RATE), in_bytes_per_second: Some(RATE), ..Limits::default() };
        guest.network.set_limits(&limits).unwrap();
        let mut stream = guest.connect(ONE, 80).unwrap();
        let mut reader = stream.try_clone().unwrap();
        let begun = Instant::now();
        let writer = std::thread::spawn(move || stream.write_all(&vec![7; 512 << 10]));
        reader.read_exact(&mut vec![0; 512 << 10]).unwrap();
        writer.join().unwrap().unwrap();
        // A burst of 128 KiB is free; the rest has to wait its turn.
        assert!(begun.elapsed() > Duration::from_millis(700), "{:?}", begun.elapsed());
        guest.leave();
    });
}
