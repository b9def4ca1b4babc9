use std::net::{Ipv4Addr, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, Question, RCODE, ResourceRecord, TYPE};

use super::*;
use crate::plan::GATEWAY;
use crate::policy::Egress;
use crate::testing::{Guest, HOST, METADATA, ONE, OTHER, ROUTER, World, on_a_host};

/// The internet's name server: what it knows, and who hears what it was asked.
fn name_server(world: &World, known: Vec<(&'static str, u32, Vec<Ipv4Addr>)>) -> mpsc::Receiver<String> {
    let socket = world.internet.inside(|| UdpSocket::bind((ROUTER, PORT))).unwrap();
    let (heard, questions) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 1500];
        while let Ok((length, asker)) = socket.recv_from(&mut bytes) {
            let Ok(query) = Packet::parse(&bytes[..length]) else { continue };
            let asked = query.questions[0].qname.to_string();
            let mut reply = Packet::new_reply(query.id());
            reply.set_flags(PacketFlag::RECURSION_AVAILABLE);
            reply.questions.push(query.questions[0].clone());
            match known.iter().find(|(name, ..)| *name == asked) {
                Some((_, ttl, addresses)) => reply.answers.extend(addresses.iter().map(|address| {
                    let data = RData::A((*address).into());
                    ResourceRecord::new(query.questions[0].qname.clone(), CLASS::IN, *ttl, data)
                })),
                None => *reply.rcode_mut() = RCODE::NameError,
            }
            let bytes = reply.build_bytes_vec_compressed().unwrap();
            if heard.send(asked).is_err() || socket.send_to(&bytes, asker).is_err() {
                return;
            }
        }
    });
    questions
}

fn serve(world: &World, guest: Guest, upstream: &[SocketAddr]) -> (Names, Guest, Arc<Network>) {
    let names = Names::start(world.site.clone(), Upstream::Servers(upstream.to_vec())).unwrap();
    let network = Arc::clone(&guest.network);
    names.serve(Arc::clone(&network));
    (names, guest, network)
}

/// What the guest's gateway says: a code, and addresses.
fn lookup(guest: &Guest, name: &str, kind: TYPE) -> (RCODE, Vec<Ipv4Addr>) {
    let mut query = Packet::new_query(77);
    query.set_flags(PacketFlag::RECURSION_DESIRED);
    query.questions.push(Question::new(Name::new_unchecked(name), kind.into(), QCLASS::CLASS(CLASS::IN), false));
    let socket = guest.udp();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.send_to(&query.build_bytes_vec().unwrap(), (GATEWAY, PORT)).unwrap();
    let mut bytes = [0; 512];
    let length = socket.recv(&mut bytes).expect("an answer");
    let reply = Packet::parse(&bytes[..length]).unwrap();
    assert_eq!((reply.id(), reply.questions.len()), (77, 1));
    let addresses = reply.answers.iter().filter_map(|record| match &record.rdata {
        RData::A(address) => Some(Ipv4Addr::from_bits(address.address)),
        _ => None,
    });
    (reply.rcode(), addresses.collect())
}

fn policy(text: &str) -> Egress {
    text.parse().unwrap()
}

#[test]
fn a_name_opens_its_addresses_for_its_port_and_no_other_name_is_asked_for() {
    on_a_host(|world| {
        let questions = name_server(world, vec![("a.example.org", 60, vec![ONE]), ("b.example.net", 60, vec![OTHER])]);
        [(ONE, 80), (ONE, 81), (OTHER, 80)].into_iter().for_each(|(address, port)| world.serve(address, port));
        let (_names, guest, network) = serve(world, world.guest(), &[(ROUTER, PORT).into()]);
        network.set_egress(&policy("*.example.org:80,gone.example.net")).unwrap();
        assert!(!guest.reaches(ONE, 80), "an address alone opens nothing");
        assert_eq!(lookup(&guest, "A.example.org", TYPE::A), (RCODE::NoError, vec![ONE]));
        assert!(guest.reaches(ONE, 80));
        assert!(!guest.reaches(ONE, 81), "its port and no other");
        let open = network.open_for_names(0).unwrap();
        assert_eq!(open.len(), 1);
        assert!(open[0].left.is_some_and(|left| left.as_secs() >= 50 && left.as_secs() <= 65), "{open:?}");
        assert_eq!(lookup(&guest, "a.example.org", TYPE::AAAA), (RCODE::NoError, vec![]));
        for (name, kind) in [
            ("b.example.net", TYPE::A),
            ("secret.evil.com", TYPE::A),
            ("secret.evil.com", TYPE::AAAA),
            ("a.example.org", TYPE::TXT),
            ("example.org", TYPE::A),
        ] {
            assert_eq!(lookup(&guest, name, kind), (RCODE::Refused, vec![]), "{name}");
        }
        assert_eq!(lookup(&guest, "gone.example.net", TYPE::A), (RCODE::NameError, vec![]));
        assert_eq!(questions.try_iter().collect::<Vec<_>>(), ["a.example.org", "gone.example.net"], "and nothing else");
        let report = network.names_report();
        assert_eq!((report.asked, report.refused), (8, 5));
        assert_eq!(report.last_refused.range(..2).collect::<Vec<_>>(), ["example.org", "a.example.org"]);
        guest.leave();
    });
}

#[test]
fn what_was_learned_goes_with_the_policy_that_allows_it() {
    on_a_host(|world| {
        let _questions = name_server(world, vec![("a.org", 60, vec![ONE]), ("b.org", 60, vec![OTHER])]);
        [(ONE, 80), (ONE, 81), (OTHER, 80)].into_iter().for_each(|(address, port)| world.serve(address, port));
        let (_names, guest, network) = serve(world, world.guest(), &[(ROUTER, PORT).into()]);
        network.set_egress(&policy("a.org:80,b.org:80")).unwrap();
        lookup(&guest, "a.org", TYPE::A);
        lookup(&guest, "b.org", TYPE::A);
        lookup(&guest, "b.org", TYPE::A);
        assert!(guest.reaches(ONE, 80) && guest.reaches(OTHER, 80));
        network.set_egress(&policy("a.org:81")).unwrap();
        assert!(guest.reaches(ONE, 81), "its address is known already");
        assert!(!guest.reaches(ONE, 80) && !guest.reaches(OTHER, 80));
        guest.leave();
    });
}

#[test]
fn a_name_cannot_stand_for_what_nobody_named() {
    on_a_host(|world| {
        let bad = vec![METADATA, HOST, Ipv4Addr::LOCALHOST, GATEWAY, Ipv4Addr::new(198, 18, 0, 5)];
        let mixed = bad.iter().copied().chain([ONE]).collect();
        let _questions = name_server(world, vec![("bad.org", 60, bad), ("mixed.org", 60, mixed)]);
        world.serve(METADATA, 80);
        world.serve_on_host(HOST, 80);
        let (_names, guest, network) = serve(world, world.guest(), &[(ROUTER, PORT).into()]);
        for text in ["*.org,bad.org,mixed.org", "all"] {
            network.set_egress(&policy(text)).unwrap();
            assert_eq!(lookup(&guest, "bad.org", TYPE::A), (RCODE::Refused, vec![]));
            assert_eq!(lookup(&guest, "mixed.org", TYPE::A), (RCODE::NoError, vec![ONE]));
            assert!(!guest.reaches(METADATA, 80) && !guest.reaches(HOST, 80));
        }
        guest.leave();
    });
}

#[test]
fn who_does_not_answer_is_followed_by_the_next_and_nobody_by_a_failure() {
    on_a_host(|world| {
        let _questions = name_server(world, vec![("a.org", 60, vec![ONE])]);
        // Nobody listens at the first.
        let upstream = [(OTHER, PORT).into(), (ROUTER, PORT).into()];
        let (names, guest, network) = serve(world, world.guest(), &upstream);
        network.set_egress(&policy("a.org")).unwrap();
        assert_eq!(lookup(&guest, "a.org", TYPE::A), (RCODE::NoError, vec![ONE]));
        drop(names);
        let names = Names::start(world.site.clone(), Upstream::Servers(vec![])).unwrap();
        names.serve(Arc::clone(&network));
        assert_eq!(lookup(&guest, "a.org", TYPE::A), (RCODE::ServerFailure, vec![]));
        guest.udp().send_to(b"no question", (GATEWAY, PORT)).unwrap();
        assert_eq!(lookup(&guest, "a.org", TYPE::A).0, RCODE::ServerFailure);
        assert_eq!(network.names_report().malformed, 1);
        guest.leave();
    });
}

#[test]
fn one_thread_serves_everybody() {
    on_a_host(|world| {
        let _questions = name_server(world, vec![("a.org", 60, vec![ONE])]);
        let names = Names::start(world.site.clone(), Upstream::Servers(vec![(ROUTER, PORT).into()])).unwrap();
        let guests: Vec<_> = (0..8).map(|_| world.guest()).collect();
        for guest in &guests {
            guest.network.set_egress(&policy("a.org")).unwrap();
            names.serve(Arc::clone(&guest.network));
        }
        for guest in &guests {
            assert_eq!(lookup(guest, "a.org", TYPE::A), (RCODE::NoError, vec![ONE]));
        }
        guests.into_iter().for_each(|guest| drop(guest.leave()));
    });
}

#[test]
fn the_hosts_name_servers_are_read_from_its_file() {
    let text = "# comment\nsearch a.org\nnameserver 192.0.2.1\n nameserver ::1 # x\nnameserver bad\nnameserver\n";
    let servers = parse(&format!("{text}nameserver 192.0.2.2\nnameserver 192.0.2.3"));
    let text: Vec<_> = servers.iter().map(ToString::to_string).collect();
    assert_eq!(text, ["192.0.2.1:53", "[::1]:53", "192.0.2.2:53"]);
}
