//! One sandbox's network: a namespace with a tap, an uplink and rules, made with netlink alone.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::asked::{Asked, NamesReport};
use crate::host::Host;
use crate::learned::{Full, Learned, Opening};
use crate::limits::Limits;
use crate::link::Links;
use crate::netns::{Directory, Namespace};
use crate::nft::{Nft, Transaction};
use crate::plan::{GATEWAY, INSIDE_PREFIX, Number, PAIR_PREFIX, TAP, UPLINK};
use crate::policy::{Egress, HostName};
use crate::report::{self, Report};
use crate::ruleset;
use crate::tap;

const DNS_PORT: u16 = 53;
/// What is switched on or off in every namespace, before it has an interface.
const SETTINGS: [(&str, &str); 3] = [
    ("/proc/sys/net/ipv4/ip_forward", "1"),
    ("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"),
    ("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"),
];

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The system refused a step.
    #[error("cannot {step}: {source}")]
    Refused {
        /// What was being done.
        step: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// This process may not.
    #[error("making networks is not permitted; run as root or with CAP_NET_ADMIN and CAP_SYS_ADMIN")]
    NotPermitted,
    /// More names than are remembered.
    #[error("the sandbox knows too many names and addresses at a time")]
    TooManyNames,
    /// Nobody used it, and somebody removed it.
    #[error("the network is gone: nobody used it, and it was swept")]
    Removed,
    /// All numbers are taken.
    #[error("all 65536 networks are in use")]
    AllInUse,
}

/// What a step is called when it fails.
pub(crate) fn refused(step: &'static str) -> impl FnOnce(io::Error) -> NetworkError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => NetworkError::NotPermitted,
        _ => NetworkError::Refused { step, source },
    }
}

/// The host that networks are made on: where their names are, and its own side of them.
#[derive(Clone, Debug)]
pub struct Site {
    pub(crate) directory: Directory,
    /// The namespace that uplinks lead to.
    namespace: Arc<Namespace>,
    links: Arc<Mutex<Links>>,
    host: Arc<Mutex<Host>>,
}

impl Site {
    /// The host of this thread, with its rules in place.
    ///
    /// # Errors
    /// When this process may not, or the kernel has no packet filter.
    pub fn prepare(directory: Directory) -> Result<Self, NetworkError> {
        let namespace = Namespace::own().map_err(refused("open the host's network"))?;
        let links = Links::open().map_err(refused("open the host's interfaces"))?;
        let host = Host::prepare().map_err(refused("set the host's packet filter (nf_tables)"))?;
        Ok(Self {
            directory,
            namespace: Arc::new(namespace),
            links: Arc::new(Mutex::new(links)),
            host: Arc::new(Mutex::new(host)),
        })
    }

    /// The host's own addresses, which no policy opens unless it names them.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn addresses(&self) -> io::Result<Vec<Ipv4Addr>> {
        locked(&self.links).addresses()
    }

    /// Removes every network that nobody uses any more, and says how many.
    ///
    /// # Errors
    /// When one cannot be looked at or removed.
    pub fn sweep(&self) -> Result<usize, NetworkError> {
        let _lock = self.directory.sweeping().map_err(refused("lock the namespaces"))?;
        let mut removed = 0;
        for number in self.directory.list().map_err(refused("list the namespaces"))? {
            if !self.is_used(number).map_err(refused("look into a namespace"))? {
                self.remove(number).map_err(refused("remove a namespace"))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn is_used(&self, number: Number) -> io::Result<bool> {
        let used = self.directory.open(number)?.inside(|| Links::open()?.has(TAP));
        match used {
            // A name that nothing was bound to.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            used => used,
        }
    }

    /// Nothing of it is left when this returns, so its number can be taken at once.
    fn remove(&self, number: Number) -> io::Result<()> {
        locked(&self.host).forget(number)?;
        let link = number.host_link();
        let mut links = locked(&self.links);
        if links.has(&link)? {
            links.remove(&link)?;
        }
        drop(links);
        self.directory.remove(number)
    }
}

/// One sandbox's network, as whoever manages it has it. Dropping it changes nothing: the namespace has a name.
#[derive(Debug)]
pub struct Network {
    number: Number,
    namespace: Namespace,
    site: Site,
    nft: Mutex<Nft>,
    /// Sees whether the tap is there.
    links: Links,
    /// Where the guest's questions for names arrive.
    pub(crate) questions: UdpSocket,
    rules: Mutex<Rules>,
    asked: Asked,
}

/// What is in force. Whoever changes it holds its lock until the kernel has the change.
#[derive(Debug, Default)]
struct Rules {
    egress: Egress,
    limits: Limits,
    learned: Learned,
}

/// What is opened inside of a namespace.
struct Inside {
    nft: Nft,
    links: Links,
    questions: UdpSocket,
}

impl Network {
    /// Takes the first free number from `from` on and makes its network, with a policy of none. The tap is for a VMM:
    /// the network is in use as long as it is open.
    ///
    /// # Errors
    /// When this process may not or all numbers are taken.
    pub fn make(site: &Site, from: Number) -> Result<(Self, OwnedFd), NetworkError> {
        let _lock = site.directory.making().map_err(refused("lock the namespaces"))?;
        let numbers = Number::all().skip(from.get().into()).chain(Number::all().take(from.get().into()));
        for number in numbers {
            if let Some(namespace) = site.directory.make(number).map_err(refused("make a network namespace"))? {
                let made = Self::furnish(site, number, namespace);
                if made.is_err() {
                    site.remove(number).map_err(refused("remove a namespace that is not complete"))?;
                }
                return made;
            }
        }
        Err(NetworkError::AllInUse)
    }

    fn furnish(site: &Site, number: Number, namespace: Namespace) -> Result<(Self, OwnedFd), NetworkError> {
        let host = site.namespace.as_fd();
        namespace.inside(|| wire(number, host)).map_err(refused("make the uplink of a namespace"))?;
        let mut links = locked(&site.links);
        let link = number.host_link();
        let address = links.add_address(&link, number.host(), PAIR_PREFIX);
        address.and_then(|()| links.set_up(&link)).map_err(refused("set up the host's end of an uplink"))?;
        drop(links);
        let tap = namespace.inside(make_tap).map_err(refused("make a tap"))?;
        let network = Self::manage(site, number, namespace)?;
        network.reset_rules()?;
        Ok((network, tap))
    }

    /// The network of that number, which another process made. `egress` and `limits` are what it has, as far as is known:
    /// a policy that is not in force is put in force, one that is goes on as it is.
    ///
    /// # Errors
    /// When there is no such network.
    pub fn adopt(site: &Site, number: Number, egress: Egress, limits: Limits) -> Result<Self, NetworkError> {
        let namespace = site.directory.open(number).map_err(refused("open a namespace"))?;
        let network = Self::manage(site, number, namespace)?;
        let sets = locked(&network.nft).sets().map_err(refused("list the sets of a namespace"))?;
        let in_force = sets.contains(&ruleset::host_set(&egress));
        *locked(&network.rules) = Rules { egress, limits, ..Rules::default() };
        if !in_force {
            network.set_egress(&network.egress())?;
        }
        Ok(network)
    }

    fn manage(site: &Site, number: Number, namespace: Namespace) -> Result<Self, NetworkError> {
        let open = || {
            let questions = UdpSocket::bind((GATEWAY, DNS_PORT))?;
            Ok(Inside { nft: Nft::open()?, links: Links::open()?, questions })
        };
        let Inside { nft, links, questions } =
            namespace.inside(open).map_err(refused("open the packet filter and the name server of a namespace"))?;
        questions.set_nonblocking(true).map_err(refused("set up the name server of a namespace"))?;
        let site = site.clone();
        Ok(Self {
            number,
            namespace,
            site,
            nft: Mutex::new(nft),
            links,
            questions,
            rules: Mutex::default(),
            asked: Asked::default(),
        })
    }

    /// Makes it as good as new, once its VM is gone: a new tap, no policy, no limit, no connection, nothing counted.
    ///
    /// # Errors
    /// When its tap is still in use, or somebody removed it.
    pub fn renew(&self) -> Result<OwnedFd, NetworkError> {
        let _lock = self.site.directory.making().map_err(refused("lock the namespaces"))?;
        if !self.site.directory.has(self.number, &self.namespace).map_err(refused("look at a namespace"))? {
            return Err(NetworkError::Removed);
        }
        let tap = self.namespace.inside(make_tap).map_err(refused("make a tap"))?;
        self.reset_rules()?;
        if locked(&self.rules).limits != Limits::default() {
            self.set_rates(&Limits::default())?;
        }
        *locked(&self.rules) = Rules::default();
        self.asked.reset();
        locked(&self.nft).forget_connections().map_err(refused("forget the connections of a namespace"))?;
        Ok(tap)
    }

    fn reset_rules(&self) -> Result<(), NetworkError> {
        let (egress, limits) = (Egress::None, Limits::default());
        let mut nft = locked(&self.nft);
        nft.commit(ruleset::base(self.number, &limits)).map_err(refused("set the packet filter of a namespace"))?;
        nft.commit(ruleset::policy(&egress, &[], &limits, &[])).map_err(refused("set the policy of a namespace"))?;
        let before = locked(&self.rules).egress.clone();
        locked(&self.site.host).allow(self.number, &before, &egress).map_err(refused("set the host's packet filter"))
    }

    /// Puts that policy in force: from the next packet on.
    ///
    /// # Errors
    /// When the kernel refuses it; then the policy is what it was.
    pub fn set_egress(&self, egress: &Egress) -> Result<(), NetworkError> {
        let host = self.site.addresses().map_err(refused("list the host's addresses"))?;
        let mut rules = locked(&self.rules);
        let mut nft = locked(&self.nft);
        let mut sets = nft.sets().map_err(refused("list the sets of a namespace"))?;
        sets.retain(|set| ruleset::is_of_policy(set));
        let mut change = ruleset::policy(egress, &host, &rules.limits, &sets);
        let (learned, openings) = rules.learned.under(egress);
        openings.into_iter().for_each(|opening| opening.add_to(&mut change, egress, false));
        nft.commit(change).map_err(refused("set the policy of a namespace"))?;
        drop(nft);
        rules.learned = learned;
        let before = std::mem::replace(&mut rules.egress, egress.clone());
        locked(&self.site.host).allow(self.number, &before, egress).map_err(refused("set the host's packet filter"))
    }

    /// Opens the addresses that a name stands for, as far as the policy allows the name; false when it does not.
    pub(crate) fn learn(&self, name: &HostName, addresses: &[Ipv4Addr], ttl: Duration) -> Result<bool, NetworkError> {
        let mut rules = locked(&self.rules);
        let Rules { egress, learned, .. } = &mut *rules;
        match egress.services_of(name) {
            None => return Ok(false),
            // Everything is open.
            Some(services) if services.is_empty() => return Ok(true),
            Some(_) => {}
        }
        let full = |Full| NetworkError::TooManyNames;
        for opening in learned.learn(egress, name, addresses, ttl).map_err(full)? {
            self.open(egress, opening).map_err(refused("open an address"))?;
            learned.opened(opening);
        }
        Ok(true)
    }

    fn open(&self, egress: &Egress, opening: Opening) -> io::Result<()> {
        let mut nft = locked(&self.nft);
        let mut commit = |anew| {
            let mut change = Transaction::default();
            opening.add_to(&mut change, egress, anew);
            nft.commit(change)
        };
        match commit(opening.is_again()) {
            // Its time ran out a moment ago.
            Err(error) if opening.is_again() && error.kind() == io::ErrorKind::NotFound => commit(false),
            other => other,
        }
    }

    /// Puts these limits in force.
    ///
    /// # Errors
    /// When the kernel refuses them.
    pub fn set_limits(&self, limits: &Limits) -> Result<(), NetworkError> {
        self.set_rates(limits)?;
        locked(&self.rules).limits = *limits;
        locked(&self.nft).commit(ruleset::limits(limits)).map_err(refused("set the limits of a namespace"))?;
        let egress = self.egress();
        self.set_egress(&egress)
    }

    fn set_rates(&self, limits: &Limits) -> Result<(), NetworkError> {
        let work = || {
            let mut links = Links::open()?;
            links.set_rate(UPLINK, limits.out_bytes_per_second)?;
            links.set_rate(TAP, limits.in_bytes_per_second)
        };
        self.namespace.inside(work).map_err(refused("limit the rate of a namespace (sch_tbf)"))
    }

    /// What it counted and refused.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn report(&self) -> Result<Report, NetworkError> {
        report::read(&mut locked(&self.nft)).map_err(refused("read the counters of a namespace"))
    }

    /// The policy that is in force.
    #[must_use]
    pub fn egress(&self) -> Egress {
        locked(&self.rules).egress.clone()
    }

    /// The limits that are in force.
    #[must_use]
    pub fn limits(&self) -> Limits {
        locked(&self.rules).limits
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> Number {
        self.number
    }

    /// Whether its tap is there: whether a VM, or whoever will give it to one, has it.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn is_used(&self) -> io::Result<bool> {
        self.links.has(TAP)
    }

    /// Removes it, whether or not it is used.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn remove(&self) -> Result<(), NetworkError> {
        let _lock = self.site.directory.sweeping().map_err(refused("lock the namespaces"))?;
        if !self.site.directory.has(self.number, &self.namespace).map_err(refused("look at a namespace"))? {
            return Ok(());
        }
        self.site.remove(self.number).map_err(refused("remove a namespace"))
    }

    /// What it asked its name server for.
    #[must_use]
    pub fn names_report(&self) -> NamesReport {
        self.asked.report()
    }

    #[cfg(test)]
    pub(crate) fn open_for_names(&self, service: usize) -> io::Result<Vec<crate::nft::Element>> {
        locked(&self.nft).elements(&ruleset::names_set(&self.egress(), service))
    }

    pub(crate) const fn names(&self) -> &Asked {
        &self.asked
    }
}

/// What was being changed when a thread panicked is in the kernel, which does all of a change or nothing.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything inside but the tap.
fn wire(number: Number, host: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
    for (setting, value) in SETTINGS {
        match fs::write(setting, value) {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && setting.contains("ipv6") => {}
            other => other?,
        }
    }
    let mut links = Links::open()?;
    links.set_up("lo")?;
    links.make_cable(UPLINK, &number.host_link(), host)?;
    links.add_address(UPLINK, number.outside(), PAIR_PREFIX)?;
    links.set_up(UPLINK)?;
    links.add_default_route(number.host())
}

fn make_tap() -> io::Result<OwnedFd> {
    let fd = tap::open(TAP)?;
    let mut links = Links::open()?;
    links.add_address(TAP, GATEWAY, INSIDE_PREFIX)?;
    links.set_up(TAP)?;
    Ok(fd)
}

#[cfg(test)]
mod tests;
