//! Networks that are ready before anybody needs them, and that come back by themselves.
//!
//! ```text
//! keeper: makes ──> ready ──take──> in use, as long as the tap is open ──> keeper: renews, or removes what is too many
//! ```
//!
//! Nobody gives a network back: its VM ends, its tap is gone, and the keeper sees it. So there is nothing to forget when
//! a VM is killed, when making one fails halfway, or when the owner of the pool is killed: what it had ready is nobody's
//! then, and the next one that starts sweeps it; what VMs use goes on, and is adopted.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::dns::{Names, Upstream};
use crate::limits::Limits;
use crate::network::{Network, NetworkError, refused};
use crate::plan::{Number, Turn};
use crate::policy::Egress;
use crate::site::{Site, locked};

/// The most networks that are kept ready.
pub const MAX_READY: usize = 1024;
/// How many are made at once for who needs more than are ready.
const MAKERS: usize = 8;
/// How often it is looked whose tap is gone.
const ROUND: Duration = Duration::from_millis(500);
/// How often it is looked for what others left.
const SWEEP: Duration = Duration::from_secs(60);

/// A network for a VM: it is in use as long as the tap is open.
#[derive(Debug)]
pub struct Lease {
    /// The network; closed, until a policy opens it.
    pub network: Arc<Network>,
    /// Its tap, for the VMM.
    pub tap: OwnedFd,
}

/// Who looks at a network once more when its VM has ended, before the next one has it.
type LastLook = Box<dyn Fn(&Network) + Send + Sync>;

/// Networks that are ready.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

struct Shared {
    site: Site,
    names: Names,
    target: usize,
    state: Mutex<State>,
    changed: Condvar,
    /// Held while a network is adopted: two could not both listen for its questions.
    adopting: Mutex<()>,
    last_look: OnceLock<LastLook>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("target", &self.target).field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Lease>,
    used: HashMap<Number, Arc<Network>>,
    /// Where to look for a free number first.
    next: u16,
    over: bool,
}

impl Pool {
    /// Removes what is nobody's and begins to make networks, until so many are ready.
    ///
    /// # Errors
    /// When what is there cannot be looked at, or there are no threads.
    pub fn start(site: Site, upstream: Upstream, target: usize) -> Result<Self, NetworkError> {
        site.sweep()?;
        let names = Names::start(site.clone(), upstream).map_err(refused("start the name server"))?;
        let (state, changed, adopting) = (Mutex::default(), Condvar::new(), Mutex::default());
        let (target, last_look) = (target.min(MAX_READY), OnceLock::new());
        let shared = Arc::new(Shared { site, names, target, state, changed, adopting, last_look });
        let keeper = Arc::clone(&shared);
        let keeper = std::thread::Builder::new().name("networks".into()).spawn(move || keeper.keep());
        Ok(Self { shared, keeper: Some(keeper.map_err(refused("start the keeper of networks"))?) })
    }

    /// Has each network looked at once more when its VM has ended. Who is the first to ask for that gets it.
    pub fn on_end(&self, look: impl Fn(&Network) + Send + Sync + 'static) {
        self.shared.last_look.get_or_init(|| Box::new(look));
    }

    /// So many networks, each for one VM. Those that are not ready are made now.
    ///
    /// # Errors
    /// When one cannot be made; then those that could are ready for others.
    pub fn take(&self, count: usize) -> Result<Vec<Lease>, NetworkError> {
        let mut state = self.shared.state();
        let rest = state.ready.len() - count.min(state.ready.len());
        let mut taken = state.ready.split_off(rest);
        drop(state);
        self.shared.changed.notify_all();
        let (made, failed) = self.shared.make_many(count - taken.len());
        taken.extend(made);
        if let Some(error) = failed {
            self.shared.state().ready.append(&mut taken);
            return Err(error);
        }
        let mut state = self.shared.state();
        for lease in &taken {
            state.used.insert(lease.network.number(), Arc::clone(&lease.network));
            self.shared.names.serve(Arc::clone(&lease.network));
        }
        Ok(taken)
    }

    /// A network that a VM has, and has had since that turn. One that the VM got from an earlier pool is looked after
    /// from now on; `egress` and `limits` are what it is to have then.
    ///
    /// # Errors
    /// When there is no such network, or it is another's turn.
    pub fn find(
        &self,
        number: Number,
        turn: Turn,
        egress: &Egress,
        limits: &Limits,
    ) -> Result<Arc<Network>, NetworkError> {
        let _lock = locked(&self.shared.adopting);
        if let Some(network) = self.shared.state().used.get(&number) {
            return if network.turn() == turn { Ok(Arc::clone(network)) } else { Err(NetworkError::Over) };
        }
        let network = Arc::new(Network::adopt(&self.shared.site, number, turn, egress, limits)?);
        self.shared.names.serve(Arc::clone(&network));
        self.shared.state().used.insert(number, Arc::clone(&network));
        Ok(network)
    }

    /// Those that VMs have.
    #[must_use]
    pub fn in_use(&self) -> Vec<Arc<Network>> {
        self.shared.state().used.values().map(Arc::clone).collect()
    }

    /// How many are ready, and how many in use.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let state = self.shared.state();
        (state.ready.len(), state.used.len())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state().over = true;
        self.shared.changed.notify_all();
        if self.keeper.take().is_some_and(|keeper| keeper.join().is_err()) {
            log::error!("the keeper of networks panicked");
        }
        let State { ready, used, .. } = std::mem::take(&mut *self.shared.state());
        let ready: Vec<_> = ready.into_iter().map(|Lease { network, .. }| network).collect();
        let left = used.into_values().filter(|network| matches!(network.is_used(), Ok(false)));
        let left = left.inspect(|network| self.shared.look_at(network));
        for network in ready.into_iter().chain(left) {
            if let Err(error) = network.remove() {
                log::warn!("{} is left: {error}", network.number().namespace());
            }
        }
    }
}

impl Shared {
    /// Every change is complete when the lock is given back.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self) {
        let mut swept = Instant::now();
        while !self.state().over {
            self.reclaim();
            if swept.elapsed() >= SWEEP {
                swept = Instant::now();
                self.sweep();
            }
            let refilled = self.refill();
            if let Err(error) = &refilled {
                log::warn!("no network can be kept ready: {error}");
            }
            let state = self.state();
            // What cannot be made is not tried at once again.
            let idle = |state: &mut State| !state.over && (refilled.is_err() || state.ready.len() >= self.target);
            drop(self.changed.wait_timeout_while(state, ROUND, idle));
        }
    }

    fn look_at(&self, network: &Network) {
        if let Some(look) = self.last_look.get() {
            look(network);
        }
    }

    /// Looks after what VMs have left.
    fn reclaim(&self) {
        let used: Vec<_> = self.state().used.values().map(Arc::clone).collect();
        for network in used {
            match network.is_used() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    log::warn!("{} cannot be looked at: {error}", network.number().namespace());
                    continue;
                }
            }
            self.names.forget(network.number());
            self.look_at(&network);
            self.state().used.remove(&network.number());
            let wanted = self.state().ready.len() < self.target;
            let done = if wanted {
                network.renew().map(|(next, tap)| self.state().ready.push(Lease { network: Arc::new(next), tap }))
            } else {
                network.remove()
            };
            if let Err(error) = done {
                log::warn!("{} is given up: {error}", network.number().namespace());
            }
        }
    }

    /// Removes what others left who were killed.
    fn sweep(&self) {
        let state = self.state();
        let ready = state.ready.iter().map(|lease| lease.network.number());
        let known: HashSet<_> = state.used.keys().copied().chain(ready).collect();
        drop(state);
        match self.site.sweep_but(&known) {
            Ok(0) => {}
            Ok(count) => log::info!("{count} networks that nobody used were removed"),
            Err(error) => log::warn!("networks that nobody uses are left: {error}"),
        }
    }

    fn refill(&self) -> Result<(), NetworkError> {
        loop {
            let state = self.state();
            if state.over || state.ready.len() >= self.target {
                return Ok(());
            }
            drop(state);
            let lease = self.make()?;
            self.state().ready.push(lease);
        }
    }

    /// Makes so many, a few at a time: the kernel does much of it for one while it has another wait. When one cannot be
    /// made no more are, and those that were are in the answer.
    fn make_many(&self, count: usize) -> (Vec<Lease>, Option<NetworkError>) {
        let (left, made, failed) = (AtomicUsize::new(count), Mutex::new(Vec::new()), Mutex::new(None));
        let work = || {
            let one = |left: usize| left.checked_sub(1);
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one).is_ok() {
                match self.make() {
                    Ok(lease) => locked(&made).push(lease),
                    Err(error) => {
                        left.store(0, Ordering::Relaxed);
                        *locked(&failed) = Some(error);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..count.min(MAKERS) {
                let maker = std::thread::Builder::new().name("network".into()).spawn_scoped(scope, work);
                if let Err(error) = maker {
                    log::debug!("fewer make networks at once: {error}");
                }
            }
            work();
        });
        (inner(made), inner(failed))
    }

    fn make(&self) -> Result<Lease, NetworkError> {
        let mut state = self.state();
        let from = state.next;
        state.next = from.wrapping_add(1);
        drop(state);
        let (network, tap) = Network::make(&self.site, Number::new(from))?;
        // Those in between are others'.
        if network.number() != Number::new(from) {
            self.state().next = network.number().get().wrapping_add(1);
        }
        Ok(Lease { network: Arc::new(network), tap })
    }
}

fn inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::testing::{Guest, ONE, OTHER, Station, World, on_a_host};

    fn start(world: &World, target: usize) -> Pool {
        Pool::start(world.site.clone(), Upstream::Servers(vec![]), target).unwrap()
    }

    fn await_counts(pool: &Pool, counts: (usize, usize)) {
        let until = Instant::now() + Duration::from_secs(20);
        while pool.counts() != counts {
            assert!(Instant::now() < until, "{:?} and not {counts:?}", pool.counts());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_network_comes_back_when_its_vm_is_gone() {
        on_a_host(|world| {
            world.serve(ONE, 80);
            let pool = start(world, 3);
            await_counts(&pool, (3, 0));
            let lease = pool.take(1).unwrap().remove(0);
            let guest = Guest::on(lease.network, lease.tap);
            guest.network.set_egress(&"198.51.100.7".parse().unwrap()).unwrap();
            assert!(guest.reaches(ONE, 80));
            await_counts(&pool, (3, 1));
            let more = pool.take(5).unwrap();
            assert_eq!(more.len(), 5, "what is not ready is made");
            let mut numbers: Vec<_> = more.iter().map(|lease| lease.network.number()).collect();
            numbers.push(guest.network.number());
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), 6);
            await_counts(&pool, (3, 6));
            guest.leave();
            drop(more);
            await_counts(&pool, (3, 0));
            let mut again = pool.take(3).unwrap();
            assert!(again.iter().all(|lease| lease.network.egress() == Egress::None));
            let used = again.pop().unwrap();
            drop((again, pool));
            assert_eq!(world.site.directory.list().unwrap(), [used.network.number()], "only what is used is left");
        });
    }

    #[test]
    fn what_a_vm_did_last_is_seen() {
        on_a_host(|world| {
            let pool = start(world, 1);
            let (say, hear) = std::sync::mpsc::channel();
            pool.on_end(move |network| say.send((network.turn(), network.report().unwrap().attempts)).unwrap());
            let lease = pool.take(1).unwrap().remove(0);
            let turn = lease.network.turn();
            let guest = Guest::on(lease.network, lease.tap);
            assert!(!guest.reaches(ONE, 80));
            guest.leave();
            let (last, attempts) = hear.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!((last, attempts.len(), attempts[0].address), (turn, 1, ONE));
            await_counts(&pool, (1, 0));
        });
    }

    #[test]
    fn five_hundred_come_and_go_and_nothing_is_left() {
        on_a_host(|world| {
            world.serve(ONE, 80);
            let mut links = crate::link::Links::open().unwrap();
            let before = links.names().unwrap();
            let pool = start(world, 100);
            let egress: Egress = "198.51.100.7,203.0.113.1,a.org:443".parse().unwrap();
            let limits = Limits { out_bytes_per_second: std::num::NonZeroU32::new(1 << 20), ..Limits::default() };
            let ours = crate::policy::NEVER[5];
            for _ in 0..5 {
                await_counts(&pool, (100, 0));
                assert!(links.routes().unwrap().iter().any(|route| ours.contains(route)));
                let mut leases = pool.take(100).unwrap();
                leases.iter().for_each(|lease| lease.network.set(&egress, &limits).unwrap());
                let lease = leases.remove(0);
                let guest = Guest::on(lease.network, lease.tap);
                assert!(guest.reaches(ONE, 80));
                guest.leave();
            }
            assert!(world.site.host().count_named().unwrap() > 0);
            await_counts(&pool, (100, 0));
            drop(pool);
            assert_eq!(world.site.directory.list().unwrap(), []);
            assert_eq!(links.names().unwrap(), before);
            let mut host = world.site.host();
            assert_eq!(host.count_named().unwrap(), 0);
            let connections: usize = Number::all().take(200).map(|number| host.connections_of(number).unwrap()).sum();
            assert_eq!(connections, 0);
            assert!(!links.routes().unwrap().iter().any(|route| ours.contains(route)));
            assert!(links.neighbours().unwrap().iter().all(|(address, ..)| !ours.contains(address)));
        });
    }

    #[test]
    fn who_is_killed_leaves_what_is_used_and_nothing_else() {
        on_a_host(|world| {
            [ONE, OTHER].into_iter().for_each(|address| world.serve(address, 80));
            let pool = start(world, 2);
            let lease = pool.take(1).unwrap().remove(0);
            let (number, turn) = (lease.network.number(), lease.network.turn());
            let (egress, limits) = ("198.51.100.7".parse::<Egress>().unwrap(), Limits::default());
            lease.network.set_egress(&egress).unwrap();
            let guest = Station::on(lease.tap);
            await_counts(&pool, (2, 1));
            // As when its process is killed: all its descriptors are closed, and nothing is tidied up.
            pool.shared.state().over = true;
            pool.shared.changed.notify_all();
            let deadline = Instant::now() + Duration::from_secs(20);
            while pool.keeper.as_ref().is_some_and(|keeper| !keeper.is_finished()) {
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            }
            pool.shared.state().ready.clear();
            drop((lease.network, pool));
            assert_eq!(world.site.directory.list().unwrap().len(), 3);
            let next = start(world, 1);
            assert!(guest.reaches(ONE, 80), "the VM noticed nothing");
            let adopted = next.find(number, turn, &egress, &limits).unwrap();
            assert!(Arc::ptr_eq(&adopted, &next.find(number, turn, &egress, &limits).unwrap()));
            next.find(number, Turn::new().unwrap(), &egress, &limits).unwrap_err();
            adopted.set_egress(&"198.51.100.8".parse().unwrap()).unwrap();
            assert!(!guest.reaches(ONE, 80) && guest.reaches(OTHER, 80));
            await_counts(&next, (1, 1));
            guest.leave();
            await_counts(&next, (1, 0));
            drop((adopted, next));
        });
    }
}
