//! The rules on the host's side: sandboxes reach the world through it, and neither it nor each other.
//!
//! Each sandbox's own table decides first. This one holds whatever that says, for everything that came by an uplink of
//! ours. Who is allowed to reach the host or a neighbour must have named its address, and is in a set of pairs here for
//! as long. It touches nothing else but what only we brought about: VMs on plain taps are reached through nobody, and a
//! host that did not forward IPv4 before it had to for us forwards nothing else (chain `others`).
//!
//! It is never removed: another daemon may depend on it, and without uplinks it does nothing. One of an older forkd is
//! replaced, in one step, with the pairs that it has; and so is one that has nothing but the rules for plain taps, which
//! whoever makes such a tap puts there first.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::nft::{Compare, Hook, Nft, Rule, SetKind, Transaction, Verdict, address_of, pair_key};
use crate::plan::{HOST_LINK, Number, OUTSIDE, OUTSIDE_PREFIX};
use crate::tap;

/// Pairs of a sandbox and an address that it named.
const NAMED: &str = "named";
const MAX_NAMED: u32 = 1 << 20;
/// A counter whose name says which rules these are. It changes when they do.
const VERSION: &str = "version-3";
/// Counts what sandboxes could not begin because all of them together had too many connections.
const LIMITED: &str = "limited";
/// Counts what is not forwarded because the host never did; it is there when the chain of that name is.
const OTHERS: &str = "others";
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
/// Whether what bridges carry passes through these rules, too.
const BRIDGED: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";
const MAX_CONNECTIONS: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
const OURS: Ipv4Net = Ipv4Net::new_assert(OUTSIDE, OUTSIDE_PREFIX);

/// The host's side of all networks.
#[derive(Debug)]
pub(crate) struct Host {
    nft: Nft,
    /// What networks have named, of those that this process has looked at.
    named: HashMap<Number, BTreeSet<Ipv4Addr>>,
}

impl Host {
    /// That of the namespace this thread is in: its rules, and that it forwards.
    pub(crate) fn prepare() -> io::Result<Self> {
        let mut nft = Nft::open()?;
        let there: Vec<_> = nft.counters()?.into_iter().map(|(name, ..)| name).collect();
        let has = |counter: &str| there.iter().any(|name| name == counter);
        if !has(VERSION) {
            let forwards = fs::read_to_string(FORWARDING)?.trim() != "0";
            let before = if nft.has_table()? { nft.elements(NAMED)? } else { Vec::new() };
            let others = if forwards && !has(OTHERS) { Others::Forwarded } else { Others::not_forwarded()? };
            let mut change = rules(others);
            change.add_all(NAMED, &before.into_iter().map(|pair| (pair.key, None)).collect::<Vec<_>>());
            nft.commit(change)?;
            // The rules have the kernel follow connections, so it knows now how many it can.
            let most = fs::read_to_string(MAX_CONNECTIONS)?.trim().parse().unwrap_or(u32::MAX);
            nft.commit(limit(most))?;
        }
        fs::write(FORWARDING, "1")?;
        Ok(Self { nft, named: HashMap::new() })
    }

    /// A network of that number was made just now, and has named nothing.
    pub(crate) fn is_new(&mut self, number: Number) {
        self.named.insert(number, BTreeSet::new());
    }

    /// Lets a sandbox reach these addresses, and whatever it could reach before.
    pub(crate) fn open(&mut self, number: Number, wanted: &[Ipv4Addr]) -> io::Result<()> {
        let had = self.named(number)?;
        let missing: Vec<_> = wanted.iter().filter(|wanted| !had.contains(wanted)).copied().collect();
        self.change(number, &missing, &[])
    }

    /// Lets a sandbox reach none but these of what it could reach before.
    pub(crate) fn keep(&mut self, number: Number, wanted: &[Ipv4Addr]) -> io::Result<()> {
        let had = self.named(number)?;
        let extra: Vec<_> = had.iter().filter(|had| !wanted.contains(had)).copied().collect();
        match self.change(number, &[], &extra) {
            // Somebody else has removed some: what is there is looked at.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.named.remove(&number);
                let had = self.named(number)?;
                let extra: Vec<_> = had.iter().filter(|had| !wanted.contains(had)).copied().collect();
                self.change(number, &[], &extra)
            }
            other => other,
        }
    }

    /// Nothing is left of what that sandbox had: neither what it named, nor its connections.
    pub(crate) fn forget(&mut self, number: Number) -> io::Result<()> {
        self.keep(number, &[])?;
        self.named.remove(&number);
        self.nft.forget_connections_of(number.outside())
    }

    fn change(&mut self, number: Number, more: &[Ipv4Addr], less: &[Ipv4Addr]) -> io::Result<()> {
        if more.is_empty() && less.is_empty() {
            return Ok(());
        }
        let key = |address: &Ipv4Addr| pair_key(number.outside(), *address);
        let mut change = Transaction::default();
        change.add_all(NAMED, &more.iter().map(|address| (key(address), None)).collect::<Vec<_>>());
        less.iter().for_each(|address| change.remove(NAMED, &key(address)));
        self.nft.commit(change)?;
        let named = self.named.entry(number).or_default();
        named.extend(more);
        named.retain(|address| !less.contains(address));
        Ok(())
    }

    fn named(&mut self, number: Number) -> io::Result<BTreeSet<Ipv4Addr>> {
        if let Some(named) = self.named.get(&number) {
            return Ok(named.clone());
        }
        let elements = self.nft.elements(NAMED)?;
        let of = number.outside().octets();
        let address = |key: &[u8]| address_of(key.get(4..)?);
        let named: BTreeSet<_> =
            elements.iter().filter(|pair| pair.key.starts_with(&of)).filter_map(|pair| address(&pair.key)).collect();
        self.named.insert(number, named.clone());
        Ok(named)
    }

    /// How many addresses anybody has named.
    pub(crate) fn count_named(&mut self) -> io::Result<usize> {
        Ok(self.nft.elements(NAMED)?.len())
    }

    #[cfg(test)]
    pub(crate) fn connections_of(&mut self, number: Number) -> io::Result<usize> {
        Ok(self.nft.connections_of(number.outside())?.len())
    }
}

/// How many packets of others the host of this thread did not forward, because it never did before it had to for sandboxes;
/// nothing where it forwards for everybody.
///
/// # Errors
/// When this process may not ask.
pub fn not_forwarded() -> io::Result<Option<u64>> {
    let counters = Nft::open()?.counters()?;
    Ok(counters.into_iter().find(|(name, ..)| name == OTHERS).map(|(_, packets, _)| packets))
}

const FILTER: Hook = Hook { number: Hook::INPUT, priority: 0, kind: "filter", policy: Verdict::Accept, device: None };

/// Sees to it that the host of this thread forwards nothing to or from plain taps, also where no daemon ever was.
pub(crate) fn close_taps() -> io::Result<()> {
    let mut nft = Nft::open()?;
    // Whatever else is in it, it begins with these rules.
    if nft.has_table()? {
        return Ok(());
    }
    let mut change = Transaction::default();
    change.table();
    begin(&mut change);
    nft.commit(change)
}

/// What every table of ours here begins with.
fn begin(change: &mut Transaction) {
    change.set(NAMED, SetKind::pairs(MAX_NAMED));
    change.base_chain("forward", Hook { number: Hook::FORWARD, ..FILTER });
    change.rule("forward", &Rule::new().incoming_any(tap::PREFIX).then(Verdict::Drop));
    change.rule("forward", &Rule::new().outgoing_any(Compare::Equal, tap::PREFIX).then(Verdict::Drop));
}

/// What becomes of IPv4 packets that are none of ours. IPv6 is forwarded as it was before: we never ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Forwarded,
    Dropped,
    /// What a bridge carries is not forwarded, but looks like it.
    DroppedUnlessBridged,
}

impl Others {
    fn not_forwarded() -> io::Result<Self> {
        match fs::read_to_string(BRIDGED) {
            Ok(said) if said.trim() != "0" => Ok(Self::DroppedUnlessBridged),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(Self::Dropped),
        }
    }
}

/// The whole table.
fn rules(others: Others) -> Transaction {
    let mut change = Transaction::default();
    change.replace_table();
    change.counter(LIMITED);
    begin(&mut change);
    let filter = FILTER;
    change.base_chain("input", filter);
    let nat = Hook { number: Hook::POSTROUTING, priority: Hook::AFTER_ROUTING, kind: "nat", ..filter };
    change.base_chain("postrouting", nat);
    change.chain("begin");
    let ours = || Rule::new().incoming_any(HOST_LINK);
    for chain in ["input", "forward"] {
        change.rule(chain, &ours().ipv4().pair_in(NAMED).then(Verdict::Accept));
    }
    // Answers to whoever on the host asked a sandbox.
    change.rule("input", &ours().established().then(Verdict::Accept));
    change.rule("input", &ours().then(Verdict::Drop));
    change.rule("forward", &Rule::new().outgoing_any(Compare::Equal, HOST_LINK).established().then(Verdict::Accept));
    change.rule("forward", &Rule::new().outgoing_any(Compare::Equal, HOST_LINK).then(Verdict::Drop));
    // An address of the host's that leads on to something behind it is the host's.
    change.rule("forward", &ours().ipv4().redirected().asked_pair_in(NAMED).then(Verdict::Accept));
    change.rule("forward", &ours().redirected().then(Verdict::Drop));
    change.rule("forward", &ours().ipv4().source_in(OURS).established().then(Verdict::Accept));
    change.rule("forward", &ours().ipv4().source_in(OURS).then(Verdict::Goto("begin")));
    change.rule("forward", &ours().then(Verdict::Drop));
    let out = Rule::new().ipv4().source_in(OURS).outgoing_any(Compare::NotEqual, HOST_LINK);
    change.rule("postrouting", &out.masquerade());
    if others != Others::Forwarded {
        change.counter(OTHERS);
        change.base_chain(OTHERS, Hook { number: Hook::FORWARD, ..filter });
        change.rule(OTHERS, &ours().then(Verdict::Accept));
        change.rule(OTHERS, &Rule::new().outgoing_any(Compare::Equal, HOST_LINK).then(Verdict::Accept));
        if others == Others::DroppedUnlessBridged {
            change.rule(OTHERS, &Rule::new().between_bridges().then(Verdict::Accept));
        }
        change.rule(OTHERS, &Rule::new().ipv4().count(OTHERS).then(Verdict::Drop));
    }
    change
}

/// Who begins a connection when all sandboxes together have half of the host's table does not get it. With that the
/// rules are complete.
fn limit(most: u32) -> Transaction {
    let mut change = Transaction::default();
    change.counter(VERSION);
    let too_many = Rule::new().connections_over(most / 2).count(LIMITED);
    change.rule("begin", &too_many.then(Verdict::Drop));
    change.rule("begin", &Rule::new().then(Verdict::Accept));
    change
}

#[cfg(test)]
mod tests;
