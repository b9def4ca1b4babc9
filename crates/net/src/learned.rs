//! Which addresses the names of an allow-list stand for at the moment, and until when.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::nft::{Transaction, address_key};
use crate::policy::{Egress, HostName};
use crate::ruleset::{MAX_LEARNED, names_set};

/// How many names of one sandbox are remembered at a time.
const MAX_NAMES: usize = 512;
/// How many addresses of all of them together.
const MAX_KNOWN: usize = 4096;
/// How much longer an address is open than the answer is good: for the way of the answer, and for whole seconds.
const GRACE: Duration = Duration::from_secs(5);
/// By how much an address must be open for longer before the kernel is told. It is less than the grace, so the answers
/// of a server that says the same over and over open nothing anew.
const NOTICED: Duration = Duration::from_secs(2);
/// How often what is old is looked for.
const TIDIED: Duration = Duration::from_secs(1);

/// What is known of the names of one policy.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    names: HashMap<HostName, HashMap<Ipv4Addr, Instant>>,
    /// What is open in each set of the policy.
    open: HashMap<(usize, Ipv4Addr), Instant>,
    tidied: Option<Instant>,
}

/// There is no room for more names or addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// An address that has to be open until then, in the set of that service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    service: usize,
    address: Ipv4Addr,
    until: Instant,
    /// It is open already, and not for long enough.
    again: bool,
}

impl Learned {
    /// What has to be opened because that name stands for these addresses.
    pub(crate) fn learn(
        &mut self,
        egress: &Egress,
        name: &HostName,
        addresses: &[Ipv4Addr],
        ttl: Duration,
    ) -> Result<Vec<Opening>, Full> {
        let now = Instant::now();
        if self.tidied.is_none_or(|tidied| now.duration_since(tidied) >= TIDIED) {
            self.forget_the_old(now);
        }
        let until = now + ttl + GRACE;
        let told: HashMap<_, _> = addresses.iter().map(|address| (*address, until)).collect();
        if !self.has_room_for(name, &told) {
            return Err(Full);
        }
        let openings = self.openings(egress, name, &told);
        let fresh = openings.iter().filter(|opening| !opening.again).count();
        if self.open.len() + fresh > MAX_LEARNED as usize {
            return Err(Full);
        }
        let known = self.names.entry(name.clone()).or_default();
        for (address, until) in told {
            let known = known.entry(address).or_insert(until);
            *known = until.max(*known);
        }
        Ok(openings)
    }

    fn has_room_for(&self, name: &HostName, told: &HashMap<Ipv4Addr, Instant>) -> bool {
        let known = self.names.get(name);
        let more = told.keys().filter(|address| known.is_none_or(|known| !known.contains_key(address))).count();
        let all: usize = self.names.values().map(HashMap::len).sum();
        (known.is_some() || self.names.len() < MAX_NAMES) && all + more <= MAX_KNOWN
    }

    /// What that policy lets a name stand for and is not open yet, or not for long enough.
    fn openings(&self, egress: &Egress, name: &HostName, known: &HashMap<Ipv4Addr, Instant>) -> Vec<Opening> {
        let all = egress.named_services();
        let mut openings = Vec::new();
        for service in egress.services_of(name).unwrap_or_default() {
            let Some(service) = all.iter().position(|other| *other == service) else { continue };
            for (address, until) in known.iter().filter(|(address, _)| egress.may_mean(name, **address)) {
                let open = self.open.get(&(service, *address));
                if open.is_none_or(|open| *open + NOTICED < *until) {
                    openings.push(Opening { service, address: *address, until: *until, again: open.is_some() });
                }
            }
        }
        openings
    }

    /// That is open now.
    pub(crate) fn opened(&mut self, opening: Opening) {
        self.open.insert((opening.service, opening.address), opening.until);
    }

    /// That was open already when somebody began to look after it, in the set of that service.
    pub(crate) fn found(&mut self, service: usize, address: Ipv4Addr, left: Duration) -> Opening {
        let opening = Opening { service, address, until: Instant::now() + left, again: false };
        self.opened(opening);
        opening
    }

    /// Under another policy: what is known then, and what has to be open from its beginning because the names it allows
    /// were asked for before.
    pub(crate) fn under(&self, egress: &Egress) -> (Self, Vec<Opening>) {
        let mut next = Self { names: self.names.clone(), ..Self::default() };
        next.forget_the_old(Instant::now());
        next.names.retain(|name, _| egress.services_of(name).is_some());
        let mut openings: HashMap<_, Opening> = HashMap::new();
        for (name, known) in &next.names {
            for opening in next.openings(egress, name, known) {
                let same = openings.entry((opening.service, opening.address)).or_insert(opening);
                same.until = same.until.max(opening.until);
            }
        }
        let openings: Vec<_> = openings.into_values().take(MAX_LEARNED as usize).collect();
        openings.iter().for_each(|opening| next.opened(*opening));
        (next, openings)
    }

    fn forget_the_old(&mut self, now: Instant) {
        self.tidied = Some(now);
        self.open.retain(|_, until| *until > now);
        self.names.retain(|_, known| {
            known.retain(|_, until| *until > now);
            !known.is_empty()
        });
    }
}

impl Opening {
    /// Adds it to a change; with `anew` its time begins again.
    pub(crate) fn add_to(self, change: &mut Transaction, egress: &Egress, anew: bool) {
        let (set, key) = (names_set(egress, self.service), address_key(self.address));
        if anew {
            change.remove(&set, &key);
        }
        // None at all would be for ever.
        let left = self.until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        change.add(&set, &key, Some(left));
    }

    pub(crate) const fn is_again(self) -> bool {
        self.again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
    const MINUTE: Duration = Duration::from_secs(60);

    fn name(text: &str) -> HostName {
        HostName::new(text).unwrap()
    }

    #[test]
    fn an_address_is_open_for_the_longest_of_its_names() {
        let egress = "a.org:80,b.org:80,c.org:443".parse().unwrap();
        let mut learned = Learned::default();
        let mut learn = |text: &str, ttl| {
            let openings = learned.learn(&egress, &name(text), &[ONE], ttl).unwrap();
            openings.iter().for_each(|opening| learned.opened(*opening));
            openings.iter().map(|opening| (opening.service, opening.again)).collect::<Vec<_>>()
        };
        assert_eq!(learn("a.org", MINUTE), [(0, false)]);
        assert_eq!(learn("b.org", MINUTE / 2), [], "it is open for longer already");
        assert_eq!(learn("b.org", MINUTE * 2), [(0, true)]);
        assert_eq!(learn("c.org", MINUTE), [(1, false)], "another port is another matter");
        assert_eq!(learn("d.org", MINUTE), []);
    }

    #[test]
    fn the_same_answer_over_and_over_is_remembered_once_and_opens_nothing() {
        let egress = "a.org".parse().unwrap();
        let all: Vec<_> = (0..12).map(|number| Ipv4Addr::from_bits(0x0100_0000 + number)).collect();
        let mut learned = Learned::default();
        let mut opened = 0;
        for _ in 0..100_000 {
            let openings = learned.learn(&egress, &name("a.org"), &all, MINUTE * 60).unwrap();
            openings.iter().for_each(|opening| learned.opened(*opening));
            opened += openings.len();
        }
        assert_eq!(learned.names[&name("a.org")].len(), 12);
        // More than once only if this takes seconds.
        assert!(opened < 1200, "{opened}");
    }

    #[test]
    fn what_a_new_policy_still_allows_stays_open() {
        let (before, after) = ("a.org:80,b.org:80".parse().unwrap(), "*.org:81,x.net".parse().unwrap());
        let mut learned = Learned::default();
        for text in ["a.org", "b.org"] {
            learned.learn(&before, &name(text), &[ONE], MINUTE).unwrap();
        }
        let (learned, moved) = learned.under(&after);
        assert_eq!(moved.iter().map(|one| (one.service, one.address)).collect::<Vec<_>>(), [(0, ONE)]);
        let (learned, moved) = learned.under(&"x.net".parse().unwrap());
        assert_eq!(moved, []);
        assert_eq!(learned.under(&after).1, [], "what was not allowed for a while is forgotten");
    }

    #[test]
    fn there_is_an_end_to_names_and_addresses() {
        let egress = "*.org".parse().unwrap();
        let mut learned = Learned::default();
        for number in 0..MAX_NAMES {
            learned.learn(&egress, &name(&format!("n{number}.org")), &[ONE], MINUTE).unwrap();
        }
        assert_eq!(learned.learn(&egress, &name("more.org"), &[ONE], MINUTE), Err(Full));
        learned.learn(&egress, &name("n1.org"), &[ONE], MINUTE).unwrap();
        let many: Vec<_> = (0..=MAX_LEARNED).map(|number| Ipv4Addr::from_bits(0x0100_0000 + number)).collect();
        assert_eq!(learned.learn(&egress, &name("n1.org"), &many, MINUTE), Err(Full));
    }

    /// What one policy let a name stand for the next may not.
    #[test]
    fn a_new_policy_opens_only_what_it_lets_a_name_mean() {
        let private = Ipv4Addr::new(10, 0, 0, 5);
        let (exact, any): (Egress, Egress) = ("db.example:80".parse().unwrap(), "*.example:80".parse().unwrap());
        let name = name("db.example");
        let mut learned = Learned::default();
        let opened = learned.learn(&exact, &name, &[private, ONE], MINUTE).unwrap();
        assert_eq!(opened.len(), 2);
        let (mut under, opened) = learned.under(&any);
        assert_eq!(opened.iter().map(|opening| opening.address).collect::<Vec<_>>(), [ONE]);
        // Nor does an answer to a question that was asked under the policy before.
        assert!(under.learn(&any, &name, &[private], MINUTE * 10).unwrap().is_empty());
    }
}
