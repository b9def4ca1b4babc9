//! The network of a child: given at the fork, written down beside it, its policy changed while it runs.
//!
//! ```text
//! run/vms/<id>/network.json    which network it has, since which turn, and the policy; written before it is in force
//! ```
//!
//! The network is the child's as long as its VMM has the tap. Whoever manages networks next finds the rest here.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use net::{Directory, Egress, Lease, Limits, Network, NetworkError, Number, Pool, Site, Turn, Upstream};
use serde::{Deserialize, Serialize};

use crate::child::Child;
use crate::pool::each;

const FILE: &str = "network.json";
/// More than the longest policy.
const MAX_FILE: u64 = 64 << 10;
const RESOLVERS: &str = "/etc/resolv.conf";
/// Held while what is written down and what is in force are not the same.
static CHANGING: Mutex<()> = Mutex::new(());

/// Why a child's network is as it was.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// It has none.
    #[error(
        "sandbox {id} has no network: its snapshot was taken without one; `forkd snapshot --egress none` takes one with"
    )]
    NoNetwork {
        /// Which.
        id: String,
    },
    /// The host cannot do it.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// It could not be written down.
    #[error("cannot write down the network of sandbox {id}")]
    Io {
        /// Which.
        id: String,
        /// What the system says.
        source: io::Error,
    },
}

/// What is written down about a child's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildNetwork {
    /// Which it is.
    pub number: Number,
    /// Since when it is the child's: the number is another's once the child has ended.
    pub turn: Turn,
    /// Where it may connect to.
    pub egress: Egress,
    /// How much of it the child may use.
    #[serde(default)]
    pub limits: Limits,
}

/// What gives children their networks.
#[derive(Clone)]
pub struct Networks<'a> {
    /// Where they come from; asked only when there is a need.
    pub pool: &'a dyn Fn() -> Result<Arc<Pool>, NetworkError>,
    /// Where they may connect to, instead of what their snapshot says. Said, it is an error when they have no network.
    pub egress: Option<Egress>,
    /// How much of them they may use, each. Said, it is an error as well.
    pub limits: Option<Limits>,
}

impl std::fmt::Debug for Networks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Networks").field("egress", &self.egress).field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// A network for a child that is not there yet. One that is dropped is nobody's again.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) tap: OwnedFd,
    network: ChildNetwork,
}

impl Networks<'_> {
    /// Whether something is said about networks, which children must have then.
    pub(crate) const fn are_meant(&self) -> bool {
        self.egress.is_some() || self.limits.is_some()
    }

    /// One for each child, with the policy in force; `usual` is that of their snapshot.
    pub(crate) fn grant(&self, count: usize, usual: Option<Egress>) -> Result<Vec<Granted>, NetworkError> {
        let egress = self.egress.clone().or(usual).unwrap_or_default();
        let limits = self.limits.unwrap_or_default();
        let as_made = egress == Egress::None && limits == Limits::default();
        let grant = |Lease { network, tap }: Lease| {
            if !as_made {
                network.set(&egress, &limits)?;
            }
            let (number, turn) = (network.number(), network.turn());
            Ok(Granted { tap, network: ChildNetwork { number, turn, egress: egress.clone(), limits } })
        };
        let leases = (self.pool)()?.take(count)?;
        // They are closed already. Opening one waits for the kernel, and many can wait at a time.
        if as_made { leases.into_iter().map(grant).collect() } else { each(leases, grant).into_iter().collect() }
    }
}

impl Granted {
    /// Writes it down in a child's directory.
    pub(crate) fn note(&self, dir: &Path) -> io::Result<()> {
        self.network.write(dir)
    }
}

impl ChildNetwork {
    fn write(&self, dir: &Path) -> io::Result<()> {
        let staged = dir.join(".network.json");
        fs::write(&staged, serde_json::to_vec(self)?)?;
        fs::rename(staged, dir.join(FILE))
    }
}

/// The networks of this host, with so many ready; what nobody uses any more is removed first.
///
/// # Errors
/// When this process may not make networks, or the kernel lacks something.
pub fn networks(ready: usize) -> Result<Pool, NetworkError> {
    Pool::start(Site::prepare(Directory::default())?, Upstream::File(RESOLVERS.into()), ready)
}

impl Child {
    /// Its network, if it has one.
    ///
    /// # Errors
    /// When what is written down cannot be read.
    pub fn network(&self) -> io::Result<Option<ChildNetwork>> {
        let file = match File::open(self.path().join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(Some(serde_json::from_slice(&bytes)?))
    }

    /// Its network, to look at and to change; one that another process managed is this one's from now on.
    ///
    /// # Errors
    /// When it has none.
    pub fn managed_network(&self, pool: &Pool) -> Result<Arc<Network>, EgressError> {
        let failed = |source| EgressError::Io { id: self.id().into(), source };
        let none = || EgressError::NoNetwork { id: self.id().into() };
        let ChildNetwork { number, turn, egress, limits } = self.network().map_err(failed)?.ok_or_else(none)?;
        Ok(pool.find(number, turn, &egress, &limits)?)
    }

    /// Puts a policy in force, from the next packet on, and limits if there are some.
    ///
    /// # Errors
    /// When it has no network or the host refuses; then they are what they were.
    pub fn set_network(
        &self,
        pool: &Pool,
        egress: Option<&Egress>,
        limits: Option<Limits>,
    ) -> Result<Arc<Network>, EgressError> {
        let network = self.managed_network(pool)?;
        let (number, turn) = (network.number(), network.turn());
        let failed = |source| EgressError::Io { id: self.id().into(), source };
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let before = ChildNetwork { number, turn, egress: network.egress(), limits: network.limits() };
        let egress = egress.cloned().unwrap_or_else(|| before.egress.clone());
        let after = ChildNetwork { number, turn, egress, limits: limits.unwrap_or(before.limits) };
        after.write(self.path()).map_err(failed)?;
        if let Err(error) = network.set(&after.egress, &after.limits) {
            before.write(self.path()).map_err(failed)?;
            return Err(error.into());
        }
        Ok(network)
    }
}
