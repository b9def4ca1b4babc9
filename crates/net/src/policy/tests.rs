use proptest::prelude::*;

use super::*;

fn policy(text: &str) -> Egress {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn name(text: &str) -> HostName {
    HostName::new(text).unwrap()
}

#[test]
fn nothing_is_said_by_default_and_nothing_is_allowed() {
    assert_eq!(Egress::default(), policy("none"));
    assert_eq!(policy("none").services_of(&name("example.org")), None);
    assert_eq!(policy(" all\n").services_of(&name("example.org")), Some(vec![]));
}

#[test]
fn an_entry_says_where_and_what() {
    let text = "pypi.org:443,*.debian.org:80,10.1.0.0/16,udp:192.0.2.7:5000-5010,tcp:example.org,192.0.2.1/32";
    let Egress::Allow(entries) = policy(text) else { panic!("a list") };
    assert_eq!(entries[0].to, Destination::Name(name("pypi.org")));
    assert_eq!(entries[0].service, Service { protocol: None, ports: Some((443, 443)) });
    assert_eq!(entries[1].to, Destination::Below(name("debian.org")));
    assert_eq!(entries[2].to, Destination::Network("10.1.0.0/16".parse().unwrap()));
    assert_eq!(entries[2].service, Service::default());
    assert_eq!(entries[3].service, Service { protocol: Some(Protocol::Udp), ports: Some((5000, 5010)) });
    assert_eq!(entries[4].service, Service { protocol: Some(Protocol::Tcp), ports: None });
    let said = policy(text).to_string();
    assert_eq!(said, text.replace("/32", ""), "one address is written as one");
    assert_eq!(policy(&said), policy(text));
    let parts: Vec<_> = text.split(',').collect();
    assert_eq!(Egress::from_parts(parts).unwrap(), policy(text), "JSON gives a list");
}

#[test]
fn what_is_wrong_is_said() {
    type Check = fn(&PolicyError) -> bool;
    let cases: &[(&str, Check)] = &[
        ("", |e| matches!(e, PolicyError::Empty)),
        (" , ,", |e| matches!(e, PolicyError::Empty)),
        ("all,example.org", |e| matches!(e, PolicyError::NotAlone { word } if word == "all")),
        ("example.org none", |e| matches!(e, PolicyError::NotAlone { word } if word == "none")),
        ("::1", |e| matches!(e, PolicyError::Ipv6 { .. })),
        ("[2001:db8::1]:80", |e| matches!(e, PolicyError::Ipv6 { .. })),
        ("tcp:2001:db8::/32", |e| matches!(e, PolicyError::Ipv6 { .. })),
        ("10.1.0.0/33", |e| matches!(e, PolicyError::Network { .. })),
        ("10.1.2.3/8", |e| matches!(e, PolicyError::Network { .. })),
        ("example.org/8", |e| matches!(e, PolicyError::Network { .. })),
        ("*", |e| matches!(e, PolicyError::Name { .. })),
        ("*.", |e| matches!(e, PolicyError::Name { .. })),
        ("a.*.org", |e| matches!(e, PolicyError::Name { .. })),
        ("a..org", |e| matches!(e, PolicyError::Name { .. })),
        ("-a.org", |e| matches!(e, PolicyError::Name { .. })),
        ("10.1", |e| matches!(e, PolicyError::Name { .. })),
        ("0x7f000001", |e| matches!(e, PolicyError::Name { .. })),
        ("256.1.1.1", |e| matches!(e, PolicyError::Name { .. })),
        ("b\u{fc}cher.org", |e| matches!(e, PolicyError::Name { .. })),
        ("tcp:80", |e| matches!(e, PolicyError::Name { .. })),
        ("http://example.org", |e| matches!(e, PolicyError::Ports { .. })),
        ("example.org:", |e| matches!(e, PolicyError::Ports { .. })),
        ("example.org:0", |e| matches!(e, PolicyError::Ports { .. })),
        ("example.org:65536", |e| matches!(e, PolicyError::Ports { .. })),
        ("example.org:+80", |e| matches!(e, PolicyError::Ports { .. })),
        ("example.org:90-80", |e| matches!(e, PolicyError::Ports { .. })),
    ];
    for (text, check) in cases {
        let error = text.parse::<Egress>().unwrap_err();
        assert!(check(&error), "{text}: {error:?}");
    }
}

#[test]
fn what_is_too_much_is_refused() {
    let list = |count: usize| (0..count).map(|n| format!("h{n}.example.org")).collect::<Vec<_>>().join(",");
    assert_eq!(policy(&list(MAX_ENTRIES)).entries().len(), MAX_ENTRIES);
    assert_eq!(list(MAX_ENTRIES + 1).parse::<Egress>(), Err(PolicyError::TooMany));
    assert_eq!(" ".repeat(MAX_TEXT + 1).parse::<Egress>(), Err(PolicyError::TooLong));
    assert_eq!(Egress::from_parts(vec!["x "; MAX_TEXT]), Err(PolicyError::TooMany));
    let long = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    assert!(HostName::new(&long).is_some());
    assert!(HostName::new(&format!("{long}d")).is_none());
    assert!(HostName::new(&format!("{}.org", "a".repeat(64))).is_none());
}

#[test]
fn a_wildcard_is_what_lies_below() {
    let egress = policy("*.example.org:443,www.example.org:80,example.net");
    let port = |port| Service { protocol: None, ports: Some((port, port)) };
    assert_eq!(egress.services_of(&name("a.b.EXAMPLE.org.")), Some(vec![port(443)]));
    assert_eq!(egress.services_of(&name("www.example.org")), Some(vec![port(443), port(80)]));
    assert_eq!(egress.services_of(&name("example.net")), Some(vec![Service::default()]));
    for other in ["example.org", "badexample.org", "example.org.evil.com", "www.example.net", "org"] {
        assert_eq!(egress.services_of(&name(other)), None, "{other}");
    }
    assert_eq!(egress.named_services(), [port(443), port(80), Service::default()]);
}

#[test]
fn only_what_lies_in_a_forbidden_range_names_it() {
    let names = |text: &str| policy(text).entries()[0].to.names_forbidden();
    for text in ["169.254.169.254", "169.254.0.0/16", "127.0.0.1:80", "224.0.0.251", "255.255.255.255", "10.42.0.1"] {
        assert!(names(text), "{text}");
    }
    for text in ["0.0.0.0/0", "128.0.0.0/1", "169.0.0.0/8", "10.0.0.0/8", "192.0.2.1", "example.org"] {
        assert!(!names(text), "{text}");
    }
}

#[test]
fn policies_have_marks_of_their_own() {
    let marks = ["none", "all", "example.org", "example.org:443", "example.net"].map(|text| policy(text).mark());
    for (index, mark) in marks.iter().enumerate() {
        assert!(*mark != 0 && !marks[..index].contains(mark));
    }
    assert_eq!(policy("example.org").mark(), policy(" Example.org. ").mark());
}

#[test]
fn it_is_a_string_in_json() {
    let egress = policy("example.org:443,10.0.0.0/8");
    let json = serde_json::to_string(&egress).unwrap();
    assert_eq!(json, "\"example.org:443,10.0.0.0/8\"");
    assert_eq!(serde_json::from_str::<Egress>(&json).unwrap(), egress);
    serde_json::from_str::<Egress>("\"10.0.0.0/99\"").unwrap_err();
}

proptest! {
    #[test]
    fn what_is_understood_is_written_as_it_is_understood(text in "[a-z0-9*.:/, -]{0,60}|(tcp:|udp:)?(\\*\\.)?[a-z]{1,9}\\.org(:[0-9]{1,5}(-[0-9]{1,5})?)?") {
        if let Ok(egress) = text.parse::<Egress>() {
            prop_assert_eq!(egress.to_string().parse::<Egress>().unwrap(), egress);
        }
    }
}
