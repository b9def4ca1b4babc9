use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::*;
use crate::plan::GUEST;
use crate::testing::{ELSEWHERE, GREETING, Guest, HOST, METADATA, ONE, OTHER, World, elsewhere, on_a_host};

fn policy(text: &str) -> Egress {
    text.parse().unwrap()
}

const fn some(number: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(number)
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
        ELSEWHERE.into_iter().for_each(|address| world.serve(address, 80));
        let (guest, neighbour) = (world.guest(), world.guest());
        let beside = neighbour.network.number();
        neighbour.place.inside(|| std::net::TcpListener::bind((GUEST, 80))).unwrap();
        for text in ["all", "0.0.0.0/0", "128.0.0.0/1"] {
            allow(&guest, text);
            assert!(guest.reaches(ONE, 80) && guest.reaches(OTHER, 81));
            let own = guest.network.number().host();
            for forbidden in
                [METADATA, HOST, own, beside.outside(), beside.host(), GATEWAY].into_iter().chain(ELSEWHERE)
            {
                assert!(!guest.reaches(forbidden, 80), "{text}: {forbidden}");
            }
        }
        allow(&guest, "169.254.169.254:80,203.0.113.1:80");
        assert!(guest.reaches(METADATA, 80) && guest.reaches(HOST, 80));
        assert!(!guest.reaches(METADATA, 81) && !guest.reaches(ONE, 80));
        allow(&guest, "168.63.129.16:80");
        assert!(guest.reaches(ELSEWHERE[0], 80) && !guest.reaches(ELSEWHERE[1], 80));
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
        guest.network.set_limits(&Limits { packets_per_second: some(10_000), ..Limits::default() }).unwrap();
        allow(&guest, "198.51.100.7,203.0.113.1");
        assert!(guest.reaches(ONE, 80) && guest.reaches(HOST, 80) && !guest.reaches(OTHER, 80));
        let in_use = guest.network.renew().unwrap_err();
        assert!(in_use.to_string().contains("tap"), "{in_use}");
        let host = &world.site;
        let number = guest.network.number();
        assert!(host.host().connections_of(number).unwrap() > 0, "the host remembers its connections");
        let (before, next) = guest.give_way();
        assert_eq!(host.host().connections_of(number).unwrap(), 0, "and forgets them");
        assert_eq!((next.network.number(), next.network.egress()), (number, Egress::None));
        assert_ne!(before.turn(), next.network.turn());
        assert_eq!(next.network.limits(), Limits::default());
        let report = next.network.report().unwrap();
        assert_eq!(Report { ipv6: report.ipv6, ..Report::default() }, report, "nothing is left of the last");
        assert!(!next.reaches(ONE, 80) && !next.reaches(HOST, 80));
        let all = policy("all");
        let old = [before.set_egress(&all), before.set_limits(&Limits::default()), before.report().map(drop)];
        assert!(old.iter().all(|outcome| matches!(outcome, Err(NetworkError::Over))), "{old:?}");
        assert!(matches!(before.renew(), Err(NetworkError::Over)));
        before.remove().unwrap();
        assert!(matches!(
            before.learn(&HostName::new("a.org").unwrap(), &[ONE], Duration::ZERO),
            Err(NetworkError::Over)
        ));
        assert!(!next.reaches(ONE, 80), "who had it before has no say in it");
        allow(&next, "198.51.100.7");
        assert!(next.reaches(ONE, 80));
        next.leave();
        world.site.sweep().unwrap();
        assert_eq!(host.host().connections_of(number).unwrap(), 0, "nor is anything left of what is removed");
    });
}

#[test]
fn changes_and_the_end_of_a_vm_wait_for_each_other_in_one_order() {
    on_a_host(|world| {
        let (network, tap) = Network::make(&world.site, Number::new(0)).unwrap();
        drop(tap);
        let (mut network, name) = (Arc::new(network), HostName::new("a.org").unwrap());
        for _ in 0..50 {
            let done = std::sync::atomic::AtomicBool::new(false);
            let change = |work: &dyn Fn() -> Result<(), NetworkError>| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    match work() {
                        Ok(()) | Err(NetworkError::Over) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            let next = std::thread::scope(|scope| {
                scope.spawn(|| change(&|| network.set_egress(&policy("a.org,203.0.113.1"))));
                scope.spawn(|| change(&|| network.learn(&name, &[ONE], Duration::from_secs(60)).map(drop)));
                let next = network.renew();
                done.store(true, std::sync::atomic::Ordering::Relaxed);
                next
            });
            network = Arc::new(next.unwrap().0);
            assert_eq!(network.egress(), Egress::None);
        }
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
        // Its own mounts may be all that a service sees, and gone when it starts again.
        let hidden = world.guest();
        let path = world.site.directory.path().join(hidden.network.number().namespace());
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
        fs::write(world.site.directory.path().join("forkd-child-77"), "").unwrap();
        assert_eq!(world.site.sweep().unwrap(), 2, "one without a tap, one that never was");
        assert!(guest.reaches(ONE, 80));
        allow(&hidden, "198.51.100.7:80");
        assert!(hidden.reaches(ONE, 80), "what has no name here is not nobody's");
        hidden.leave();
        let until = Instant::now() + Duration::from_secs(20);
        while path.exists() {
            assert!(Instant::now() < until, "it is nobody's now");
            world.site.sweep().unwrap();
        }
        adopt(world, gone, Turn::new().unwrap(), "none").unwrap_err();
        let again = world.guest();
        assert_eq!(again.network.number(), gone, "its number is free at once");
        again.leave();
        let number = guest.network.number();
        guest.leave();
        assert_eq!(world.site.sweep().unwrap(), 2);
        assert!(!world.site.directory.path().join(number.namespace()).exists());
    });
}

fn adopt(world: &World, number: Number, turn: Turn, text: &str) -> Result<Network, NetworkError> {
    Network::adopt(&world.site, number, turn, &policy(text), &Limits::default())
}

#[test]
fn a_network_is_adopted_as_it_is() {
    on_a_host(|world| {
        serve_everywhere(world);
        let (network, tap) = Network::make(&world.site, Number::new(0)).unwrap();
        let (number, turn, text) = (network.number(), network.turn(), "198.51.100.7:80,a.org:81");
        network.set_egress(&policy(text)).unwrap();
        network.learn(&HostName::new("a.org").unwrap(), &[OTHER], Duration::from_secs(60)).unwrap();
        drop(network);
        assert!(matches!(adopt(world, number, Turn::new().unwrap(), text), Err(NetworkError::Over)), "another's");
        let guest = Guest::on(Arc::new(adopt(world, number, turn, text).unwrap()), tap);
        assert_eq!(guest.network.egress(), policy(text));
        assert!(guest.reaches(ONE, 80) && !guest.reaches(OTHER, 80));
        assert!(guest.reaches(OTHER, 81), "what a name stood for still is open");
        let open = guest.network.open_for_names(0).unwrap();
        assert!(open.len() == 1 && open[0].left.is_some_and(|left| left.as_secs() <= 65), "{open:?}");
        guest.network.set_limits(&Limits { packets_per_second: some(10_000), ..Limits::default() }).unwrap();
        assert!(guest.reaches(OTHER, 81));
        allow(&guest, "198.51.100.8:80");
        assert!(!guest.reaches(ONE, 80) && guest.reaches(OTHER, 80));
        // Who was killed between writing a policy down and putting it in force.
        let (next, tap) = guest.leave().renew().unwrap();
        let turn = next.turn();
        drop(next);
        let guest = Guest::on(Arc::new(adopt(world, number, turn, "198.51.100.7:80").unwrap()), tap);
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
        let limits = Limits { connections: some(5).unwrap(), ..Limits::default() };
        guest.network.set_limits(&limits).unwrap();
        let open: Vec<_> = (0..5).map(|_| guest.connect(ONE, 80).unwrap()).collect();
        guest.udp().send_to(b"x", (ONE, 80)).unwrap();
        await_count(&guest, |report| report.limited.packets);
        assert!(open.iter().all(lives), "those that are open stay so");
        drop(open);
        let limited = guest.network.report().unwrap().limited.packets;
        guest.network.set_limits(&Limits { packets_per_second: some(50), ..Limits::default() }).unwrap();
        let socket = guest.udp();
        (0..500).for_each(|_| drop(socket.send_to(b"x", (ONE, 80))));
        await_count(&guest, |report| report.limited.packets - limited);
        guest.leave();
    });
}

#[test]
fn packets_are_limited_both_ways() {
    on_a_host(|world| {
        let guest = world.guest();
        allow(&guest, "all");
        guest.network.set_limits(&Limits { packets_per_second: some(50), ..Limits::default() }).unwrap();
        let server = world.internet.inside(|| std::net::UdpSocket::bind((ONE, 90))).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        guest.udp().send_to(b"x", (ONE, 90)).unwrap();
        let (_, asker) = server.recv_from(&mut [0; 8]).unwrap();
        (0..500).for_each(|_| drop(server.send_to(b"y", asker)));
        // More than the guest has sent.
        await_count(&guest, |report| report.limited.packets.saturating_sub(100));
        guest.leave();
    });
}

#[test]
fn questions_fill_no_table() {
    const QUESTIONS: usize = 200;
    on_a_host(|world| {
        serve_everywhere(world);
        let guest = world.guest();
        for _ in 0..QUESTIONS {
            guest.udp().send_to(b"what", (GATEWAY, DNS_PORT)).unwrap();
        }
        let (mut answered, until) = (0, Instant::now() + Duration::from_secs(20));
        while answered < QUESTIONS {
            assert!(Instant::now() < until, "{answered} came");
            let Ok((_, asker)) = guest.network.questions.recv_from(&mut [0; 8]) else { continue };
            guest.network.questions.send_to(b"that", asker).unwrap();
            answered += 1;
        }
        let remembered = || guest.network.namespace.inside(|| Nft::open()?.connections_of(GUEST)).unwrap().len();
        assert_eq!(remembered(), 0);
        allow(&guest, "all");
        let _open = guest.connect(ONE, 80).unwrap();
        assert_eq!(remembered(), 1, "others are remembered");
        guest.leave();
    });
}

#[test]
fn bytes_take_the_time_they_are_given() {
    const RATE: Option<NonZeroU32> = NonZeroU32::new(512 << 10);
    on_a_host(|world| {
        serve_everywhere(world);
        let guest = world.guest();
        allow(&guest, "all");
        let limits = Limits { out_bytes_per_second: RATE, in_bytes_per_second: RATE, ..Limits::default() };
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

/// An ARP request as it goes through a tap, behind its header.
fn arp(from: ([u8; 6], Ipv4Addr), whose: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0; usize::try_from(tap::VNET_HEADER_LEN).unwrap()];
    frame.extend([0xFF; 6].into_iter().chain(GUEST_MAC).chain([0x08, 0x06]));
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(from.0.into_iter().chain(from.1.octets()).chain([0; 6]).chain(whose.octets()));
    frame
}

#[test]
fn who_asks_in_the_name_of_another_is_not_answered_and_fills_no_table() {
    on_a_host(|world| {
        let (network, tap) = Network::make(&world.site, Number::new(0)).unwrap();
        let mut reply = [0; 128];
        while rustix::io::read(&tap, &mut reply).is_ok() {}
        for number in 0..50 {
            let forged = arp((GUEST_MAC, Ipv4Addr::new(10, 42, 0, 100 + number)), GATEWAY);
            rustix::io::write(&tap, &forged).unwrap();
        }
        rustix::io::write(&tap, &arp(([2, 0, 0, 0, 0, 9], GUEST), GATEWAY)).unwrap();
        assert_eq!(network.report().unwrap().spoofed.packets, 51);
        assert!(rustix::io::read(&tap, &mut reply).is_err(), "nobody answers");
        rustix::io::write(&tap, &arp((GUEST_MAC, GUEST), GATEWAY)).unwrap();
        rustix::io::read(&tap, &mut reply).expect("who says who it is gets an answer");
        assert_eq!(network.report().unwrap().spoofed.packets, 51);
        let known = network.namespace.inside(|| Links::open()?.neighbours()).unwrap();
        let ours = |address| known.iter().any(|(it, _, forever)| *it == address && *forever);
        assert!(ours(GUEST) && ours(network.number().host()), "{known:?}");
        assert!(!known.iter().any(|(it, ..)| it.octets()[3] >= 100), "{known:?}");
        let host = Links::open().unwrap().neighbours().unwrap();
        assert!(host.iter().any(|(it, _, forever)| *it == network.number().outside() && *forever), "{host:?}");
    });
}

#[test]
fn a_host_with_thousands_of_addresses_keeps_all_of_them_closed() {
    on_a_host(|world| {
        let own = |number: u32| Ipv4Addr::from_bits(0xC633_0000 + number);
        let mut links = Links::open().unwrap();
        (0..5000).for_each(|number| links.add_address("lo", own(number), 32).unwrap());
        world.serve_on_host(own(4999), 80);
        world.serve(ONE, 80);
        let site = Site::prepare(world.site.directory.clone()).unwrap();
        let (network, tap) = Network::make(&site, Number::new(0)).unwrap();
        let guest = Guest::on(Arc::new(network), tap);
        allow(&guest, "all");
        assert!(!guest.reaches(own(4999), 80));
        assert_eq!(guest.network.report().unwrap().denied.packets, 1, "by its own rules");
        allow(&guest, "198.51.19.135");
        assert!(guest.reaches(own(4999), 80), "who names it reaches it");
        guest.leave();
    });
}

#[test]
fn a_number_that_somebody_else_uses_is_left_alone() {
    on_a_host(|world| {
        let (other, link) = (elsewhere(), Number::new(0).host_link());
        let mut links = Links::open().unwrap();
        links.make_cable((&link, [2, 0, 0, 0, 0, 5]), ("eth0", [2, 0, 0, 0, 0, 6]), other.as_fd()).unwrap();
        let guest = world.guest();
        assert_eq!(guest.network.number(), Number::new(1));
        assert!(links.has(&link).unwrap());
        guest.leave();
    });
}

#[test]
fn vms_on_plain_taps_and_whoever_else_is_there_are_not_reached_through_the_host() {
    on_a_host(|world| {
        serve_everywhere(world);
        let plain = Ipv4Addr::new(10, 42, 7, 2);
        let other = elsewhere();
        let mut links = Links::open().unwrap();
        links.make_cable(("forkd-tap7", [2, 0, 0, 0, 0, 5]), ("eth0", [2, 0, 0, 0, 0, 6]), other.as_fd()).unwrap();
        links.add_address("forkd-tap7", Ipv4Addr::new(10, 42, 7, 1), 24).unwrap();
        links.set_up("forkd-tap7").unwrap();
        let join = || {
            let mut links = Links::open()?;
            links.add_address("eth0", plain, 24)?;
            links.set_up("eth0")?;
            links.add_default_route(Ipv4Addr::new(10, 42, 7, 1))?;
            std::net::TcpListener::bind((plain, 80))
        };
        let _listener = other.inside(join).unwrap();
        let guest = world.guest();
        for text in ["all", "10.0.0.0/8"] {
            allow(&guest, text);
            assert!(!guest.reaches(plain, 80), "{text}");
        }
        assert_eq!(guest.network.report().unwrap().denied.packets, 2, "by its own rules");
        let far = std::net::SocketAddr::from((ONE, 80));
        let reached = other.inside(|| TcpStream::connect_timeout(&far, Duration::from_millis(300)));
        reached.expect_err("the host forwards for sandboxes only");
        assert!(crate::not_forwarded().unwrap().is_some_and(|packets| packets > 0), "and says so");
        guest.leave();
    });
}

#[test]
fn a_change_of_limits_and_one_of_the_policy_are_both_in_force() {
    on_a_host(|world| {
        serve_everywhere(world);
        let guest = world.guest();
        for round in 1..=20 {
            allow(&guest, "all");
            let limits = Limits { packets_per_second: some(10_000 + round), ..Limits::default() };
            std::thread::scope(|scope| {
                scope.spawn(|| guest.network.set_limits(&limits).unwrap());
                scope.spawn(|| guest.network.set_egress(&Egress::None).unwrap());
            });
            assert_eq!((guest.network.egress(), guest.network.limits()), (Egress::None, limits));
        }
        assert!(!guest.reaches(ONE, 80));
        serde_json::from_str::<Limits>(r#"{"packets_per_second":0}"#).unwrap_err();
        guest.leave();
    });
}

#[test]
fn a_ping_is_one_destination_however_often() {
    on_a_host(|world| {
        let guest = world.guest();
        let ping = guest.place.inside(|| {
            let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::RAW);
            Ok(rustix::net::socket(family, kind, Some(rustix::net::ipproto::ICMP))?)
        });
        let (ping, to) = (ping.unwrap(), std::net::SocketAddr::from((ONE, 0)));
        for number in 0..20 {
            let echo = [8, 0, 0xF7_u8.wrapping_sub(number), 0xFF, 0, 0, number, 0];
            rustix::net::sendto(&ping, &echo, rustix::net::SendFlags::empty(), &to).unwrap();
        }
        await_count(&guest, |report| u64::from(report.denied.packets == 20));
        let report = guest.network.report().unwrap();
        assert_eq!(report.attempts.len(), 1, "{report:?}");
        assert_eq!((report.attempts[0].protocol, report.attempts[0].port, report.attempts[0].packets), (1, None, 20));
        guest.leave();
    });
}
