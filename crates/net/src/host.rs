//! The rules on the host's side: sandboxes reach the world through it, and neither it nor each other.
//!
//! Each sandbox's own table decides first. This one holds whatever that says, for everything that came by an uplink of
//! ours; it touches nothing else. Who is allowed to reach the host or a neighbour must have named its address, and is in
//! a set of pairs here for as long.
//!
//! It is never removed: another daemon may depend on it, and without uplinks it does nothing.

use std::io;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::nft::{Compare, Hook, Nft, Rule, SetKind, Transaction, Verdict, pair_key};
use crate::plan::{HOST_LINK, Number, OUTSIDE, OUTSIDE_PREFIX};
use crate::policy::{Destination, Egress};

/// Pairs of a sandbox and an address that it named.
const NAMED: &str = "named";
const MAX_NAMED: u32 = 1 << 20;
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
const OURS: Ipv4Net = Ipv4Net::new_assert(OUTSIDE, OUTSIDE_PREFIX);

/// The host's side of all networks.
#[derive(Debug)]
pub(crate) struct Host {
    nft: Nft,
}

impl Host {
    /// That of the namespace this thread is in: its rules, and that it forwards.
    pub(crate) fn prepare() -> io::Result<Self> {
        let mut nft = Nft::open()?;
        if !nft.has_table()? {
            nft.commit(rules())?;
        }
        std::fs::write(FORWARDING, "1")?;
        Ok(Self { nft })
    }

    /// Lets a sandbox reach what its policy names one by one, and nothing else that the policy before did.
    pub(crate) fn allow(&mut self, number: Number, before: &Egress, egress: &Egress) -> io::Result<()> {
        let singles =
            |egress: &Egress| egress.entries().iter().filter_map(|entry| single(&entry.to)).collect::<Vec<_>>();
        let wanted = singles(egress);
        if wanted.is_empty() && singles(before).is_empty() {
            return Ok(());
        }
        self.replace(number, &wanted)
    }

    /// Whatever this sandbox had named is not allowed any more.
    pub(crate) fn forget(&mut self, number: Number) -> io::Result<()> {
        self.replace(number, &[])
    }

    fn replace(&mut self, number: Number, wanted: &[Ipv4Addr]) -> io::Result<()> {
        let had = self.allowed(number)?;
        let mut change = Transaction::default();
        had.iter().filter(|had| !wanted.contains(had)).for_each(|address| {
            change.remove(NAMED, &pair_key(number.outside(), *address));
        });
        wanted.iter().filter(|wanted| !had.contains(wanted)).for_each(|address| {
            change.add(NAMED, &pair_key(number.outside(), *address), None);
        });
        if change.is_empty() { Ok(()) } else { self.nft.commit(change) }
    }

    fn allowed(&mut self, number: Number) -> io::Result<Vec<Ipv4Addr>> {
        let elements = self.nft.elements(NAMED)?;
        let of = number.outside().octets();
        let address = |key: &[u8]| <[u8; 4]>::try_from(key.get(4..)?).ok().map(Ipv4Addr::from);
        Ok(elements.iter().filter(|pair| pair.key.starts_with(&of)).filter_map(|pair| address(&pair.key)).collect())
    }
}

fn single(to: &Destination) -> Option<Ipv4Addr> {
    match to {
        Destination::Network(network) if network.prefix_len() == 32 => Some(network.addr()),
        Destination::Network(_) | Destination::Name(_) | Destination::Below(_) => None,
    }
}

fn rules() -> Transaction {
    let mut change = Transaction::default();
    change.replace_table();
    change.set(NAMED, SetKind::pairs(MAX_NAMED));
    let filter = Hook { number: Hook::INPUT, priority: 0, kind: "filter", policy: Verdict::Accept, device: None };
    change.base_chain("input", filter);
    change.base_chain("forward", Hook { number: Hook::FORWARD, ..filter });
    let nat = Hook { number: Hook::POSTROUTING, priority: Hook::AFTER_ROUTING, kind: "nat", ..filter };
    change.base_chain("postrouting", nat);
    let ours = || Rule::new().incoming_any(HOST_LINK);
    for chain in ["input", "forward"] {
        change.rule(chain, &ours().ipv4().pair_in(NAMED).then(Verdict::Accept));
    }
    // Answers to whoever on the host asked a sandbox.
    change.rule("input", &ours().established().then(Verdict::Accept));
    change.rule("input", &ours().then(Verdict::Drop));
    change.rule("forward", &Rule::new().outgoing_any(Compare::Equal, HOST_LINK).established().then(Verdict::Accept));
    change.rule("forward", &Rule::new().outgoing_any(Compare::Equal, HOST_LINK).then(Verdict::Drop));
    change.rule("forward", &ours().ipv4().source_in(OURS).then(Verdict::Accept));
    change.rule("forward", &ours().then(Verdict::Drop));
    let out = Rule::new().ipv4().source_in(OURS).outgoing_any(Compare::NotEqual, HOST_LINK);
    change.rule("postrouting", &out.masquerade());
    change
}
