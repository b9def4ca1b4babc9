//! The host that networks are made on: where their names are, and its own side of them.

use std::collections::HashSet;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::host::Host;
use crate::link::Links;
use crate::netns::{Directory, Namespace};
use crate::network::{NetworkError, refused};
use crate::plan::{Number, PAIR_PREFIX, TAP};
use crate::policy::NEVER;

/// How old a list of the host's addresses may be. An address that is newer than that is closed by the host's own rules.
const FRESH: Duration = Duration::from_secs(1);
/// The most addresses that a host has: each sandbox with a policy has a set of them.
const MAX_ADDRESSES: usize = 16 << 10;

/// The host that networks are made on.
#[derive(Clone, Debug)]
pub struct Site {
    pub(crate) directory: Directory,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The namespace that uplinks lead to.
    namespace: Namespace,
    links: Mutex<Links>,
    host: Mutex<Host>,
    addresses: Mutex<Option<(Instant, Arc<[Ipv4Addr]>)>>,
}

impl Site {
    /// The host of this thread, with its rules in place.
    ///
    /// # Errors
    /// When this process may not, or the kernel has no packet filter.
    pub fn prepare(directory: Directory) -> Result<Self, NetworkError> {
        let namespace = Namespace::own().map_err(refused("open the host's network"))?;
        let links = Mutex::new(Links::open().map_err(refused("open the host's interfaces"))?);
        let host = Mutex::new(Host::prepare().map_err(refused("set the host's packet filter (nf_tables)"))?);
        Ok(Self { directory, shared: Arc::new(Shared { namespace, links, host, addresses: Mutex::default() }) })
    }

    /// The host's own addresses, as of about now, which no policy opens unless it names them; without those that no
    /// policy opens anyway.
    ///
    /// # Errors
    /// When the kernel does not say, or they are more than can be kept closed.
    pub fn addresses(&self) -> io::Result<Arc<[Ipv4Addr]>> {
        let mut known = locked(&self.shared.addresses);
        if let Some((_, addresses)) = known.as_ref().filter(|(asked, _)| asked.elapsed() < FRESH) {
            return Ok(Arc::clone(addresses));
        }
        let asked = Instant::now();
        let mut addresses = locked(&self.shared.links).addresses()?;
        addresses.retain(|address| !NEVER.iter().any(|never| never.contains(address)));
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.len() > MAX_ADDRESSES {
            let message =
                format!("the host has {} addresses, and at most {MAX_ADDRESSES} can be kept closed", addresses.len());
            return Err(io::Error::other(message));
        }
        let addresses: Arc<[_]> = addresses.into();
        *known = Some((asked, Arc::clone(&addresses)));
        Ok(addresses)
    }

    /// How many addresses its own rules open to networks that named them; none when there is no network.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn opened(&self) -> io::Result<usize> {
        self.host().count_named()
    }

    /// Removes every network that nobody uses any more, and says how many.
    ///
    /// # Errors
    /// When one cannot be looked at or removed.
    pub fn sweep(&self) -> Result<usize, NetworkError> {
        self.sweep_but(&HashSet::new())
    }

    /// The same, without looking at those that are known to be somebody's.
    pub(crate) fn sweep_but(&self, known: &HashSet<Number>) -> Result<usize, NetworkError> {
        let _lock = self.directory.sweeping().map_err(refused("lock the namespaces"))?;
        let mut removed = 0;
        let mut numbers = self.directory.list().map_err(refused("list the namespaces"))?;
        numbers.retain(|number| !known.contains(number));
        for number in numbers {
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
            // A name that nothing is bound to here. Its namespace may still be there, kept by its tap, if it was bound
            // where we do not see it; then its uplink is, which goes with it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                locked(&self.shared.links).has(&number.host_link())
            }
            used => used,
        }
    }

    /// Nothing of it is left when this returns, so its number can be taken at once.
    pub(crate) fn remove(&self, number: Number) -> io::Result<()> {
        let link = number.host_link();
        let mut links = locked(&self.shared.links);
        if links.has(&link)? {
            links.remove(&link)?;
        }
        drop(links);
        self.host().forget(number)?;
        self.directory.remove(number)
    }

    /// Sets the host's end of an uplink up.
    pub(crate) fn connect(&self, number: Number) -> io::Result<()> {
        let (link, (_, inside)) = (number.host_link(), number.hardware());
        let mut links = locked(&self.shared.links);
        links.add_address(&link, number.host(), PAIR_PREFIX)?;
        links.set_up(&link)?;
        links.add_neighbour(&link, number.outside(), inside)
    }

    /// The host's side. Who has the rules of a network may take it, and not the other way around.
    pub(crate) fn host(&self) -> MutexGuard<'_, Host> {
        locked(&self.shared.host)
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.shared.namespace
    }
}

/// What was being changed when a thread panicked is in the kernel, which does all of a change or nothing.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
