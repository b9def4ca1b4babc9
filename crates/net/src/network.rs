//! One sandbox's network: a namespace with a tap, an uplink and rules, made with netlink alone.
//!
//! A [`Network`] is one turn of it. When its VM is gone the namespace gets a new tap and is another [`Network`]; whoever
//! still has the old one is told that it is over, and changes and sees nothing of the next.
//!
//! Locks are taken in this order: the directory's, the rules of one network, the host's side.

mod rules;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::asked::{Asked, NamesReport};
use crate::limits::Limits;
use crate::link::Links;
use crate::netns::Namespace;
use crate::nft::Nft;
use crate::plan::{GATEWAY, GUEST, INSIDE_PREFIX, Number, PAIR_PREFIX, TAP, Turn, UPLINK};
use crate::policy::{Egress, HostName};
use crate::report::{self, Report};
use crate::site::{Site, locked};
use crate::tap::{self, GUEST_MAC};
use rules::Rules;

const DNS_PORT: u16 = 53;
/// What is set in every namespace, before it has an interface. A connection that nothing was said on for an hour is
/// judged anew.
const SETTINGS: [(&str, &str); 4] = [
    ("/proc/sys/net/ipv4/ip_forward", "1"),
    ("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"),
    ("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"),
    ("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established", "3600"),
];
/// More questions than can wait in a socket.
const MAX_QUESTIONS: usize = 1 << 16;

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
    #[error("cannot {step}: not permitted; run as root or with CAP_NET_ADMIN and CAP_SYS_ADMIN")]
    NotPermitted {
        /// What was being done.
        step: &'static str,
    },
    /// This process sees a host that cannot be changed.
    #[error(
        "cannot {step}: it is read-only here; a service needs /run/netns and /proc/sys/net as they are, without \
         ProtectSystem=strict, ProtectKernelTunables or any other option that gives it mounts of its own"
    )]
    ReadOnly {
        /// What was being done.
        step: &'static str,
    },
    /// More names than are remembered.
    #[error("the sandbox knows too many names and addresses at a time")]
    TooManyNames,
    /// Its VM is gone.
    #[error("the network is gone: its VM has ended")]
    Over,
    /// All numbers are taken.
    #[error("all 65536 networks are in use; end a sandbox")]
    AllInUse,
}

/// What a step is called when it fails.
pub(crate) fn refused(step: &'static str) -> impl FnOnce(io::Error) -> NetworkError {
    move |source| match source.kind() {
        io::ErrorKind::PermissionDenied => NetworkError::NotPermitted { step },
        io::ErrorKind::ReadOnlyFilesystem => NetworkError::ReadOnly { step },
        _ => NetworkError::Refused { step, source },
    }
}

/// One turn of a sandbox's network, as whoever manages it has it. Dropping it changes nothing: the namespace has a name.
#[derive(Debug)]
pub struct Network {
    number: Number,
    turn: Turn,
    site: Site,
    namespace: Arc<Namespace>,
    /// Sees whether the tap is there.
    links: Arc<Links>,
    /// Where the guest's questions for names arrive.
    pub(crate) questions: Arc<UdpSocket>,
    rules: Mutex<Rules>,
    asked: Asked,
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
            let made = site.directory.make(number).map_err(refused("make a network namespace"))?;
            let Some(namespace) = made else { continue };
            match namespace.inside(|| wire(number, site.namespace().as_fd())) {
                Ok(()) => return Self::furnish(site, number, namespace),
                // Somebody who has other names than ours uses that number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    site.directory.remove(number).map_err(refused("remove a namespace that is not complete"))?;
                }
                Err(error) => return Err(give_up(site, number, refused("make the uplink of a namespace")(error))),
            }
        }
        Err(NetworkError::AllInUse)
    }

    fn furnish(site: &Site, number: Number, namespace: Namespace) -> Result<(Self, OwnedFd), NetworkError> {
        let complete = || {
            site.connect(number).map_err(refused("set up the host's end of an uplink"))?;
            site.host().is_new(number);
            let tap = namespace.inside(make_tap).map_err(refused("make a tap"))?;
            let turn = Turn::new().map_err(refused("get random numbers"))?;
            let network = Self::manage(site, number, turn, namespace)?;
            locked(&network.rules).reset(number, turn)?;
            Ok((network, tap))
        };
        complete().map_err(|error| give_up(site, number, error))
    }

    /// The network of that number, which another process made. `egress` and `limits` are what it is to have: they are
    /// put in force, and what they allowed before goes on.
    ///
    /// # Errors
    /// When there is no such network, or it is another's turn.
    pub fn adopt(
        site: &Site,
        number: Number,
        turn: Turn,
        egress: &Egress,
        limits: &Limits,
    ) -> Result<Self, NetworkError> {
        let namespace = site.directory.open(number).map_err(refused("open a namespace"))?;
        let network = Self::manage(site, number, turn, namespace)?;
        let mut rules = locked(&network.rules);
        rules.find(turn, egress)?;
        network.apply(&mut rules, egress, limits)?;
        drop(rules);
        Ok(network)
    }

    fn manage(site: &Site, number: Number, turn: Turn, namespace: Namespace) -> Result<Self, NetworkError> {
        let open = || {
            let questions = UdpSocket::bind((GATEWAY, DNS_PORT))?;
            Ok(Inside { nft: Nft::open()?, links: Links::open()?, questions })
        };
        let Inside { nft, links, questions } =
            namespace.inside(open).map_err(refused("open the packet filter and the name server of a namespace"))?;
        questions.set_nonblocking(true).map_err(refused("set up the name server of a namespace"))?;
        Ok(Self {
            number,
            turn,
            site: site.clone(),
            namespace: Arc::new(namespace),
            links: Arc::new(links),
            questions: Arc::new(questions),
            rules: Mutex::new(Rules::new(nft)),
            asked: Asked::default(),
        })
    }

    /// Begins the next turn, as good as new, once the VM is gone: a new tap, no policy, no limit, no connection, nothing
    /// counted. This one is over then. Nobody may be answering its questions any more.
    ///
    /// # Errors
    /// When its tap is still in use, or it is over. If anything else fails, nothing of it is left.
    pub fn renew(&self) -> Result<(Self, OwnedFd), NetworkError> {
        let _lock = self.site.directory.making().map_err(refused("lock the namespaces"))?;
        if !self.site.directory.has(self.number, &self.namespace).map_err(refused("look at a namespace"))? {
            return Err(NetworkError::Over);
        }
        let mut rules = locked(&self.rules);
        if rules.is_over() {
            return Err(NetworkError::Over);
        }
        self.forget_questions();
        let tap = self.namespace.inside(make_tap).map_err(refused("make a tap"))?;
        let (nft, limits) = rules.end()?;
        drop(rules);
        let next = || {
            let turn = Turn::new().map_err(refused("get random numbers"))?;
            let network = Self {
                number: self.number,
                turn,
                site: self.site.clone(),
                namespace: Arc::clone(&self.namespace),
                links: Arc::clone(&self.links),
                questions: Arc::clone(&self.questions),
                rules: Mutex::new(Rules::new(nft)),
                asked: Asked::default(),
            };
            network.start_over(&limits)?;
            Ok((network, tap))
        };
        next().map_err(|error| give_up(&self.site, self.number, error))
    }

    /// Nothing is left of the turn before, which had these limits.
    fn start_over(&self, limits: &Limits) -> Result<(), NetworkError> {
        let mut rules = locked(&self.rules);
        rules.reset(self.number, self.turn)?;
        if *limits != Limits::default() {
            self.set_rates(&Limits::default())?;
        }
        rules.forget_connections()?;
        let mut host = self.site.host();
        host.forget(self.number).map_err(refused("forget the connections of a sandbox on the host"))?;
        host.is_new(self.number);
        Ok(())
    }

    /// What the last guest asked for and nobody has looked at is not the next one's.
    fn forget_questions(&self) {
        let mut bytes = [0; 1];
        for _ in 0..MAX_QUESTIONS {
            if matches!(self.questions.recv_from(&mut bytes), Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
        }
    }

    /// Puts that policy in force: from the next packet on.
    ///
    /// # Errors
    /// When the kernel refuses it; then the policy is what it was. When the VM is gone.
    pub fn set_egress(&self, egress: &Egress) -> Result<(), NetworkError> {
        let mut rules = locked(&self.rules);
        let limits = rules.limits();
        self.apply(&mut rules, egress, &limits)
    }

    /// Puts these limits in force.
    ///
    /// # Errors
    /// When the kernel refuses them; then the limits are what they were. When the VM is gone.
    pub fn set_limits(&self, limits: &Limits) -> Result<(), NetworkError> {
        let mut rules = locked(&self.rules);
        let egress = rules.egress().clone();
        self.apply(&mut rules, &egress, limits)
    }

    /// Both at once.
    ///
    /// # Errors
    /// As for each of them.
    pub fn set(&self, egress: &Egress, limits: &Limits) -> Result<(), NetworkError> {
        self.apply(&mut locked(&self.rules), egress, limits)
    }

    /// Whatever fails, everything is as it was: the host's side grows before and shrinks after.
    fn apply(&self, rules: &mut Rules, egress: &Egress, limits: &Limits) -> Result<(), NetworkError> {
        if rules.is_over() {
            return Err(NetworkError::Over);
        }
        let own = self.site.addresses().map_err(refused("list the host's addresses"))?;
        let on_host = || refused("set the host's packet filter");
        let (wanted, had, limited) = (egress.singles(), rules.egress().singles(), rules.known_limits());
        self.site.host().open(self.number, &wanted).map_err(on_host())?;
        let rates_change = limited != Some(*limits);
        let rated = if rates_change { self.set_rates(limits) } else { Ok(()) };
        let applied = rated.and_then(|()| rules.apply(egress, limits, &own));
        let restored = match &applied {
            Err(_) if rates_change => self.set_rates(&limited.unwrap_or_default()),
            _ => Ok(()),
        };
        // Whatever else fails, the host lets through no more than is in force.
        let stay = if applied.is_ok() { &wanted } else { &had };
        self.site.host().keep(self.number, stay).map_err(on_host())?;
        restored.and(applied)
    }

    /// Opens the addresses that a name stands for, as far as the policy allows the name; false when it does not.
    pub(crate) fn learn(&self, name: &HostName, addresses: &[Ipv4Addr], ttl: Duration) -> Result<bool, NetworkError> {
        locked(&self.rules).learn(name, addresses, ttl)
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
    /// When the kernel does not say, or the VM is gone.
    pub fn report(&self) -> Result<Report, NetworkError> {
        report::read(locked(&self.rules).nft()?).map_err(refused("read the counters of a namespace"))
    }

    /// The policy that is in force, or was when the VM ended.
    #[must_use]
    pub fn egress(&self) -> Egress {
        locked(&self.rules).egress().clone()
    }

    /// The limits that are in force, or were when the VM ended.
    #[must_use]
    pub fn limits(&self) -> Limits {
        locked(&self.rules).limits()
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> Number {
        self.number
    }

    /// Whose turn it is.
    #[must_use]
    pub const fn turn(&self) -> Turn {
        self.turn
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
        let named = self.site.directory.has(self.number, &self.namespace).map_err(refused("look at a namespace"))?;
        match locked(&self.rules).end() {
            Ok(_) if named => self.site.remove(self.number).map_err(refused("remove a namespace")),
            Ok(_) | Err(NetworkError::Over) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What it asked its name server for.
    #[must_use]
    pub fn names_report(&self) -> NamesReport {
        self.asked.report()
    }

    #[cfg(test)]
    pub(crate) fn open_for_names(&self, service: usize) -> io::Result<Vec<crate::nft::Element>> {
        let mut rules = locked(&self.rules);
        let set = crate::ruleset::names_set(rules.egress(), service);
        rules.nft().unwrap().elements(&set)
    }

    pub(crate) const fn names(&self) -> &Asked {
        &self.asked
    }
}

/// Takes away what is not complete; why it is not is what matters.
fn give_up(site: &Site, number: Number, why: NetworkError) -> NetworkError {
    if let Err(error) = site.remove(number) {
        log::warn!("{} is left: {error}", number.namespace());
    }
    why
}

/// Everything inside but the tap.
fn wire(number: Number, host: BorrowedFd<'_>) -> io::Result<()> {
    for (setting, value) in SETTINGS {
        match fs::write(setting, value) {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && setting.contains("ipv6") => {}
            other => other?,
        }
    }
    let mut links = Links::open()?;
    let (outer, inner) = number.hardware();
    links.make_cable((UPLINK, inner), (&number.host_link(), outer), host)?;
    links.set_up("lo")?;
    links.add_address(UPLINK, number.outside(), PAIR_PREFIX)?;
    links.set_up(UPLINK)?;
    links.add_neighbour(UPLINK, number.host(), outer)?;
    links.add_default_route(number.host())
}

fn make_tap() -> io::Result<OwnedFd> {
    let fd = tap::open(TAP)?;
    let mut links = Links::open()?;
    links.add_address(TAP, GATEWAY, INSIDE_PREFIX)?;
    links.set_up(TAP)?;
    links.add_neighbour(TAP, GUEST, GUEST_MAC)?;
    Ok(fd)
}

#[cfg(test)]
mod tests;
