//! What is in force on one network. Whoever changes it has it until the kernel has the change, so what is said here and
//! what the kernel does never differ for anybody else.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::{NetworkError, refused};
use crate::learned::{Full, Learned, Opening};
use crate::limits::Limits;
use crate::nft::{Nft, Transaction, address_of};
use crate::plan::{Number, Turn};
use crate::policy::{Egress, HostName};
use crate::ruleset;

/// What is in force.
#[derive(Debug)]
pub(super) struct Rules {
    /// The packet filter of the namespace, until the turn is over.
    nft: Option<Nft>,
    egress: Egress,
    /// Not known of a network that somebody else managed.
    limits: Option<Limits>,
    learned: Learned,
    /// What was open for names when somebody began to look after it.
    found: Vec<Opening>,
}

impl Rules {
    pub(super) fn new(nft: Nft) -> Self {
        let (egress, limits, learned) = (Egress::None, None, Learned::default());
        Self { nft: Some(nft), egress, limits, learned, found: Vec::new() }
    }

    pub(super) const fn egress(&self) -> &Egress {
        &self.egress
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits.unwrap_or_default()
    }

    pub(super) const fn known_limits(&self) -> Option<Limits> {
        self.limits
    }

    pub(super) const fn is_over(&self) -> bool {
        self.nft.is_none()
    }

    /// The packet filter, while the turn lasts.
    pub(super) fn nft(&mut self) -> Result<&mut Nft, NetworkError> {
        self.nft.as_mut().ok_or(NetworkError::Over)
    }

    /// The turn is over: this neither changes nor sees anything any more. The packet filter is for the next, and the
    /// limits are what it has to lift.
    pub(super) fn end(&mut self) -> Result<(Nft, Limits), NetworkError> {
        let nft = self.nft.take().ok_or(NetworkError::Over)?;
        Ok((nft, self.limits()))
    }

    /// The beginning of a turn: all rules anew, no policy, no limit. The tap must be there.
    pub(super) fn reset(&mut self, number: Number, turn: Turn) -> Result<(), NetworkError> {
        let mut change = Transaction::default();
        ruleset::base(&mut change, number, turn);
        ruleset::policy(&mut change, &Egress::None, &[], &Limits::default(), &[]);
        self.nft()?.commit(change).map_err(refused("set the packet filter of a namespace"))?;
        self.limits = Some(Limits::default());
        Ok(())
    }

    pub(super) fn forget_connections(&mut self) -> Result<(), NetworkError> {
        self.nft()?.forget_connections().map_err(refused("forget the connections of a namespace"))
    }

    /// Looks what is there of a policy that another process put in force, if it is that turn.
    pub(super) fn find(&mut self, turn: Turn, egress: &Egress) -> Result<(), NetworkError> {
        let nft = self.nft.as_mut().ok_or(NetworkError::Over)?;
        let looking = || refused("look at the packet filter of a namespace");
        let turn = turn.to_string();
        if !nft.counters().map_err(looking())?.iter().any(|(name, ..)| *name == turn) {
            return Err(NetworkError::Over);
        }
        let sets = nft.sets().map_err(looking())?;
        for service in 0..egress.named_services().len() {
            let set = ruleset::names_set(egress, service);
            if !sets.contains(&set) {
                continue;
            }
            for element in nft.elements(&set).map_err(looking())? {
                if let (Some(address), Some(left)) = (address_of(&element.key), element.left) {
                    self.found.push(self.learned.found(service, address, left));
                }
            }
        }
        self.egress = egress.clone();
        Ok(())
    }

    /// Puts both in force, in one step or not at all. `own` are the host's addresses.
    pub(super) fn apply(&mut self, egress: &Egress, limits: &Limits, own: &[Ipv4Addr]) -> Result<(), NetworkError> {
        let nft = self.nft.as_mut().ok_or(NetworkError::Over)?;
        let mut sets = nft.sets().map_err(refused("list the sets of a namespace"))?;
        sets.retain(|set| ruleset::is_of_policy(set));
        let mut change = Transaction::default();
        if self.limits != Some(*limits) {
            ruleset::limits(&mut change, limits);
        }
        ruleset::policy(&mut change, egress, own, limits, &sets);
        let (mut learned, openings) = self.learned.under(egress);
        if self.egress == *egress {
            for opening in &self.found {
                opening.add_to(&mut change, egress, false);
                learned.opened(*opening);
            }
        }
        openings.iter().for_each(|opening| opening.add_to(&mut change, egress, false));
        nft.commit(change).map_err(refused("set the policy of a namespace"))?;
        if self.egress != *egress {
            self.found.clear();
        }
        (self.egress, self.limits, self.learned) = (egress.clone(), Some(*limits), learned);
        Ok(())
    }

    /// Opens the addresses that a name stands for, as far as the policy allows the name; false when it does not.
    pub(super) fn learn(
        &mut self,
        name: &HostName,
        addresses: &[Ipv4Addr],
        ttl: Duration,
    ) -> Result<bool, NetworkError> {
        let nft = self.nft.as_mut().ok_or(NetworkError::Over)?;
        match self.egress.services_of(name) {
            None => return Ok(false),
            // Everything is open.
            Some(services) if services.is_empty() => return Ok(true),
            Some(_) => {}
        }
        let full = |Full| NetworkError::TooManyNames;
        let openings = self.learned.learn(&self.egress, name, addresses, ttl).map_err(full)?;
        open(nft, &self.egress, &openings).map_err(refused("open an address"))?;
        openings.into_iter().for_each(|opening| self.learned.opened(opening));
        Ok(true)
    }
}

/// All of an answer in one step: there is one thread for the questions of all networks, and each step takes its time.
fn open(nft: &mut Nft, egress: &Egress, openings: &[Opening]) -> io::Result<()> {
    if openings.is_empty() {
        return Ok(());
    }
    let mut commit = |some: &[Opening], anew: bool| {
        let mut change = Transaction::default();
        some.iter().for_each(|opening| opening.add_to(&mut change, egress, anew && opening.is_again()));
        nft.commit(change)
    };
    match commit(openings, true) {
        // The time of one of them ran out a moment ago; of which is found out one by one.
        Err(error) if error.kind() == io::ErrorKind::NotFound => openings.iter().try_for_each(|opening| {
            let one = std::slice::from_ref(opening);
            match commit(one, true) {
                Err(error) if opening.is_again() && error.kind() == io::ErrorKind::NotFound => commit(one, false),
                done => done,
            }
        }),
        done => done,
    }
}
