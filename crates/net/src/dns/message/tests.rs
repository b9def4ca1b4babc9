use proptest::prelude::*;
use simple_dns::rdata::CNAME;

use super::*;

const ONE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

fn query(name: &str, kind: TYPE) -> Vec<u8> {
    let mut packet = Packet::new_query(7);
    packet.questions.push(Asked::new(Name::new_unchecked(name), kind.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().unwrap()
}

fn name(text: &str) -> HostName {
    HostName::new(text).unwrap()
}

/// What a name server says: records of an owner, a time, and an address or another name.
fn answer(asked: &str, records: &[(&str, u32, Result<Ipv4Addr, &str>)]) -> Vec<u8> {
    let mut packet = Packet::new_reply(7);
    packet.questions.push(Asked::new(Name::new_unchecked(asked), TYPE::A.into(), CLASS::IN.into(), false));
    for (owner, ttl, what) in records {
        let data = match what {
            Ok(address) => RData::A((*address).into()),
            Err(alias) => RData::CNAME(CNAME(Name::new_unchecked(alias))),
        };
        packet.answers.push(ResourceRecord::new(Name::new_unchecked(owner), CLASS::IN, *ttl, data));
    }
    packet.build_bytes_vec_compressed().unwrap()
}

#[test]
fn a_question_is_answered_in_its_own_words() {
    let question = Question::parse(&query("WWW.Example.org", TYPE::A)).unwrap();
    assert_eq!((question.kind, question.name.clone()), (Kind::Ipv4, Some(name("www.example.org"))));
    let said = question.answer(&[ONE; 40], Duration::from_secs(60));
    assert!(said.len() <= 512);
    let packet = Packet::parse(&said).unwrap();
    assert_eq!((packet.id(), packet.rcode()), (7, RCODE::NoError));
    assert_eq!(packet.questions[0].qname.to_string(), "WWW.Example.org");
    assert_eq!((packet.answers.len(), packet.answers[0].ttl), (MAX_ADDRESSES, 60));
    for (outcome, code) in [(Outcome::Refused, RCODE::Refused), (Outcome::Nothing, RCODE::NoError)] {
        let said = question.decline(outcome);
        let packet = Packet::parse(&said).unwrap();
        assert_eq!((packet.rcode(), packet.answers.len()), (code, 0));
    }
}

#[test]
fn the_longest_name_leaves_room_for_all_addresses() {
    let long = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    let question = Question::parse(&query(&long, TYPE::A)).unwrap();
    assert!(question.answer(&[ONE; MAX_ADDRESSES], TTL.1).len() <= 512);
}

#[test]
fn only_questions_are_understood() {
    assert_eq!(Question::parse(&query("example.org", TYPE::AAAA)).unwrap().kind, Kind::Ipv6);
    assert_eq!(Question::parse(&query("example.org", TYPE::TXT)).unwrap().kind, Kind::Other);
    assert_eq!(Question::parse(&query("exa mple.org", TYPE::A)).unwrap().name, None);
    assert!(Question::parse(&answer("example.org", &[])).is_none());
    assert!(Question::parse(&Packet::new_query(1).build_bytes_vec().unwrap()).is_none());
    // A name that is a pointer to itself.
    let mut looping = query("a.org", TYPE::A);
    looping.truncate(12);
    looping.extend([0xC0, 12, 0, 1, 0, 1]);
    assert!(Question::parse(&looping).is_none());
}

#[test]
fn aliases_are_followed_and_others_are_not() {
    let records = [
        ("www.example.org", 300, Err("cdn.example.net")),
        ("CDN.example.net", 30, Ok(ONE)),
        ("evil.example.com", 5, Ok(Ipv4Addr::new(10, 0, 0, 1))),
    ];
    let said = understand(&answer("www.example.org", &records), 7, &name("www.example.org")).unwrap();
    assert_eq!(said, Answer { addresses: Ok(vec![ONE]), ttl: Duration::from_secs(30) });
    let looping = [("a.org", 300, Err("b.org")), ("b.org", 300, Err("a.org"))];
    let said = understand(&answer("a.org", &looping), 7, &name("a.org")).unwrap();
    assert_eq!(said.addresses, Err(Outcome::Nothing));
}

#[test]
fn an_answer_to_another_question_is_none() {
    let said = answer("a.org", &[("a.org", 300, Ok(ONE))]);
    assert!(understand(&said, 8, &name("a.org")).is_none());
    assert!(understand(&said, 7, &name("b.org")).is_none());
    assert!(understand(&query("a.org", TYPE::A), 7, &name("a.org")).is_none());
    assert!(understand(&said[..said.len() - 1], 7, &name("a.org")).is_none());
}

#[test]
fn times_are_bounded_both_ways() {
    let ttl = |seconds| understand(&answer("a.org", &[("a.org", seconds, Ok(ONE))]), 7, &name("a.org")).unwrap().ttl;
    assert_eq!((ttl(0), ttl(u32::MAX), ttl(60)), (TTL.0, TTL.1, Duration::from_secs(60)));
}

#[test]
fn what_is_asked_of_the_host_is_a_question() {
    let question = Question::parse(&ask(9, &name("example.org"))).unwrap();
    assert_eq!((question.id, question.kind, question.name), (9, Kind::Ipv4, Some(name("example.org"))));
}

proptest! {
    #[test]
    fn whatever_comes_nothing_breaks(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0_usize..60, with: u8) {
        let mut near = answer("a.org", &[("a.org", 300, Err("b.org")), ("b.org", 1, Ok(ONE))]);
        let index = at.min(near.len() - 1);
        near[index] = with;
        for bytes in [&bytes, &near] {
            drop(understand(bytes, 7, &name("a.org")));
            if let Some(question) = Question::parse(bytes) {
                prop_assert!(question.answer(&[ONE; 20], TTL.1).len() <= 512);
            }
        }
    }
}
