//! The rules of one sandbox, in its own namespace, where nothing of the guest's runs.
//!
//! ```text
//! ingress   whatever comes from the tap: the guest's own addresses, IPv4 or ARP, not too much; else dropped, counted.
//!           It is in a table of its own, that of the tap: others do not see ARP
//! forward   tap to uplink: policy     uplink to tap: replies     anything else: dropped
//! policy    a connection that was let through by this policy? else what the list names, what is never reached,
//!           networks, names; then pass or deny
//! pass      not too many connections; the connection gets the policy's mark
//! deny      counted, noted, refused
//! replies   of connections that have the mark
//! input     questions to the name server, and answers to whoever entered the namespace
//! asking    (and answering) the questions: no connection is remembered for any, for they would be without number, in
//!           a table that all namespaces share
//! ```
//!
//! A policy is a mark on the connections it let through. When the policy changes so does the mark, and the next packet of
//! every connection is judged anew; nothing has to be searched for or cut. And a connection to an address that a name
//! stood for goes on when the name's time is over, as long as the policy is the same.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::limits::Limits;
use crate::nft::{Base, Code, Compare, Family, Hook, Reg, Rule, SetKind, Transaction, Verdict, address_key};
use crate::plan::{GATEWAY, GUEST, Number, TAP, Turn, UPLINK};
use crate::policy::{Destination, Egress, Entry, NEVER};
use crate::tap::GUEST_MAC;

/// Counts what goes out, what comes in, what is refused, what is not the guest's, what is IPv6, and what is too much.
pub(crate) const OUT: &str = "out";
pub(crate) const IN: &str = "in";
pub(crate) const DENIED: &str = "denied";
pub(crate) const SPOOFED: &str = "spoofed";
pub(crate) const IPV6: &str = "ipv6";
pub(crate) const LIMITED: &str = "limited";
const COUNTERS: [&str; 4] = [OUT, IN, DENIED, LIMITED];
const INGRESS_COUNTERS: [&str; 3] = [SPOOFED, IPV6, LIMITED];

/// The set of what was refused.
pub(crate) const ATTEMPTS: &str = "attempts";
/// How many different ones are kept, and for how long after the last time.
const MAX_ATTEMPTS: u32 = 128;
pub(crate) const ATTEMPT_KEPT: Duration = Duration::from_secs(600);
/// How many addresses names may stand for at a time, for each kind of service.
pub(crate) const MAX_LEARNED: u32 = 1024;

const DNS: u16 = 53;
const ARP: [u8; 2] = [0x08, 0x06];
const IPV4_TYPE: [u8; 2] = [0x08, 0x00];
const IPV6_TYPE: [u8; 2] = [0x86, 0xDD];

/// The whole of both tables, without a policy: nothing passes. The tap must be there.
pub(crate) fn base(change: &mut Transaction, number: Number, turn: Turn) {
    change.about(Family::Device);
    change.replace_table();
    INGRESS_COUNTERS.iter().for_each(|name| change.counter(name));
    let filter = |number, device| Hook { number, priority: 0, kind: "filter", policy: Verdict::Drop, device };
    change.base_chain("ingress", filter(Hook::INGRESS, Some(TAP)));
    ingress(change, &Limits::default());
    change.about(Family::Inet);
    change.replace_table();
    COUNTERS.iter().for_each(|name| change.counter(name));
    // Whose turn it is can be read from the kernel by whoever comes later.
    change.counter(&turn.to_string());
    change.set(ATTEMPTS, SetKind::attempts(MAX_ATTEMPTS, ATTEMPT_KEPT));
    ["policy", "pass", "deny", "replies"].iter().for_each(|name| change.chain(name));
    change.base_chain("forward", filter(Hook::FORWARD, None));
    change.base_chain("input", filter(Hook::INPUT, None));
    let nat = Hook { priority: Hook::AFTER_ROUTING, kind: "nat", policy: Verdict::Accept, ..filter(0, None) };
    change.base_chain("postrouting", Hook { number: Hook::POSTROUTING, ..nat });
    change.rule("forward", &Rule::new().incoming(TAP).outgoing(UPLINK).then(Verdict::Jump("policy")));
    change.rule("forward", &Rule::new().incoming(UPLINK).outgoing(TAP).then(Verdict::Jump("replies")));
    change.rule("forward", &Rule::new().incoming(TAP).then(Verdict::Goto("deny")));
    input(change);
    change.rule("postrouting", &Rule::new().ipv4().outgoing(UPLINK).translate_source(number.outside()));
    deny(change);
}

/// What the limits change beside the policy, which has the rest of them. The tap must be there.
pub(crate) fn limits(change: &mut Transaction, limits: &Limits) {
    change.about(Family::Device);
    change.flush("ingress");
    ingress(change, limits);
    change.about(Family::Inet);
}

fn ingress(change: &mut Transaction, limits: &Limits) {
    if let Some(rate) = limits.packets_per_second {
        change.rule("ingress", &Rule::new().packets_over(rate.get()).count(LIMITED).then(Verdict::Drop));
    }
    let typed = |kind: &[u8]| Rule::new().meta(1, Reg::A).compare(Compare::Equal, kind);
    let bad = |rule: Rule| rule.count(SPOOFED).then(Verdict::Drop);
    change.rule("ingress", &bad(Rule::new().load(Base::Link, 6, 6, Reg::A).compare(Compare::NotEqual, &GUEST_MAC)));
    change.rule("ingress", &typed(&IPV6_TYPE).count(IPV6).then(Verdict::Drop));
    change.rule("ingress", &typed(&IPV4_TYPE).source(Compare::Equal, GUEST).then(Verdict::Accept));
    // Who an ARP packet says it comes from, hardware address and address, is what the gateway would believe.
    let arp = typed(&ARP).load(Base::Network, 8, 6, Reg::A).compare(Compare::Equal, &GUEST_MAC);
    let arp = arp.load(Base::Network, 14, 4, Reg::A).compare(Compare::Equal, &GUEST.octets());
    change.rule("ingress", &arp.then(Verdict::Accept));
    change.rule("ingress", &bad(Rule::new()));
}

fn input(change: &mut Transaction) {
    let raw = |number| {
        let priority = Hook::BEFORE_CONNECTIONS;
        Hook { number, priority, kind: "filter", policy: Verdict::Accept, device: None }
    };
    change.base_chain("asking", raw(Hook::PREROUTING));
    change.base_chain("answering", raw(Hook::OUTPUT));
    change.rule("asking", &Rule::new().incoming(TAP).ipv4().to(GATEWAY.into()).udp_to(DNS).untracked());
    let answer = Rule::new().outgoing(TAP).ipv4().source(Compare::Equal, GATEWAY).udp_from(DNS);
    change.rule("answering", &answer.untracked());
    let ask = Rule::new().incoming(TAP).ipv4().to(GATEWAY.into()).udp_to(DNS);
    change.rule("input", &ask.then(Verdict::Accept));
    change.rule("input", &Rule::new().incoming(TAP).established().then(Verdict::Accept));
    change.rule("input", &Rule::new().incoming("lo").then(Verdict::Accept));
    change.rule("input", &Rule::new().incoming(TAP).then(Verdict::Goto("deny")));
}

fn deny(change: &mut Transaction) {
    change.rule("deny", &Rule::new().count(DENIED));
    // What is refused ends there, so each is noted by one rule.
    change.rule("deny", &Rule::new().ipv4().tcp().note_port(ATTEMPTS));
    change.rule("deny", &Rule::new().tcp().refuse(Code::Reset));
    change.rule("deny", &Rule::new().ipv4().udp().note_port(ATTEMPTS));
    change.rule("deny", &Rule::new().udp().refuse(Code::Prohibited));
    change.rule("deny", &Rule::new().ipv4().note(ATTEMPTS));
    change.rule("deny", &Rule::new().refuse(Code::Prohibited));
}

/// Puts that policy in place of the one before; `old` are the sets that belonged to it.
pub(crate) fn policy(change: &mut Transaction, egress: &Egress, host: &[Ipv4Addr], limits: &Limits, old: &[String]) {
    ["policy", "pass", "replies"].iter().for_each(|chain| change.flush(chain));
    old.iter().for_each(|set| change.remove_set(set));
    let mark = egress.mark();
    let judged = |counter| Rule::new().established().marked(mark).count(counter).then(Verdict::Accept);
    if let Some(rate) = limits.packets_per_second {
        change.rule("replies", &Rule::new().packets_over(rate.get()).count(LIMITED).then(Verdict::Drop));
    }
    change.rule("replies", &judged(IN));
    change.rule("replies", &Rule::new().then(Verdict::Drop));
    let too_many = Rule::new().connections_over(limits.connections.get()).count(LIMITED);
    change.rule("pass", &too_many.then(Verdict::Drop));
    change.rule("pass", &Rule::new().set_mark(mark).count(OUT).then(Verdict::Accept));
    change.rule("policy", &judged(OUT));
    destinations(change, egress, host);
    change.rule("policy", &Rule::new().then(Verdict::Goto("deny")));
}

fn destinations(change: &mut Transaction, egress: &Egress, host: &[Ipv4Addr]) {
    let own = host_set(egress);
    // As large as it has to be: the kernel makes room for all of it at once.
    change.set(&own, SetKind::addresses(u32::try_from(host.len()).unwrap_or(u32::MAX).max(1)));
    change.add_all(&own, &host.iter().map(|address| (address_key(*address), None)).collect::<Vec<_>>());
    let networks = |first: bool| egress.entries().iter().filter(move |entry| names_itself(entry) == first);
    networks(true).for_each(|entry| network(change, entry));
    for never in NEVER {
        change.rule("policy", &Rule::new().ipv4().to(never).then(Verdict::Goto("deny")));
    }
    change.rule("policy", &Rule::new().ipv4().destination_in(&own).then(Verdict::Goto("deny")));
    networks(false).for_each(|entry| network(change, entry));
    for (index, service) in egress.named_services().into_iter().enumerate() {
        let set = names_set(egress, index);
        change.set(&set, SetKind::addresses(MAX_LEARNED));
        for rule in Rule::new().ipv4().destination_in(&set).for_service(service) {
            change.rule("policy", &rule.then(Verdict::Goto("pass")));
        }
    }
    if *egress == Egress::All {
        change.rule("policy", &Rule::new().ipv4().then(Verdict::Goto("pass")));
    }
}

/// Whether an entry opens even what is never reached otherwise: it lies within, or it is one address.
fn names_itself(entry: &Entry) -> bool {
    matches!(&entry.to, Destination::Network(network) if network.prefix_len() == 32) || entry.to.names_forbidden()
}

fn network(change: &mut Transaction, entry: &Entry) {
    let Destination::Network(network) = entry.to else { return };
    for rule in Rule::new().ipv4().to(network).for_service(entry.service) {
        change.rule("policy", &rule.then(Verdict::Goto("pass")));
    }
}

/// The set of the addresses that names stand for, for the service of that place. It is of this policy and no other, so
/// that an answer that comes late opens nothing.
pub(crate) fn names_set(egress: &Egress, service: usize) -> String {
    format!("names-{:08x}-{service}", egress.mark())
}

/// The set of the host's own addresses. Every policy has one, so it tells which policy is in force.
pub(crate) fn host_set(egress: &Egress) -> String {
    format!("host-{:08x}", egress.mark())
}

/// Whether a set belongs to a policy.
pub(crate) fn is_of_policy(set: &str) -> bool {
    set.starts_with("host-") || set.starts_with("names-")
}
