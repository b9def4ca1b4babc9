//! What a network adds to a spawn, natively.
//!
//! What is added is what the engine does for it: a network is taken from the pool, which has it ready, it is written down
//! beside the child, and the child gets a network card over its tap. A policy other than "nothing" is put in force as
//! well; that is a transaction of the kernel's, and told by itself.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bench::tiny::{Brood, Logging, Shape, Template, freeze};
use net::{Directory, Egress, Lease, Limits, Network, Pool, Site, Upstream};
use serde_json::{Value, json};
use types::GuestMemorySize;

use crate::forkd::{place, vmm};
use crate::process::go_first;
use crate::spawn::take_descriptors;
use crate::spread::Spread;

/// How long the pool may take to be full again.
const REFILL: Duration = Duration::from_secs(120);
/// A policy as people write them.
const POLICY: &str = "198.51.100.0/24:443,example.org:443,*.example.com";

/// Milliseconds per VM of one round.
#[derive(Debug, Default)]
struct Round {
    without: f64,
    with: f64,
    taken: f64,
    noted: f64,
    opened: f64,
}

pub(super) fn run(count: usize, rounds: usize) -> Result<Value> {
    ensure!(Path::new("/dev/kvm").exists(), "there is no /dev/kvm here; `forkd doctor` says what can be done");
    take_descriptors()?;
    let first = go_first();
    let dir = tempfile::tempdir_in(place(None))?;
    let mut world = World::new(dir.path(), count)?;
    // The first of each is not counted: nobody has been there before.
    world.round()?;
    let mut all = Vec::new();
    for number in 1..=rounds {
        all.push(world.round()?);
        eprintln!("{count} at once: {number} of {rounds} rounds");
    }
    let spread = |of: fn(&Round) -> f64| Spread::of(all.iter().map(of)).json();
    Ok(json!({
        "vms_at_once": count,
        "rounds": rounds,
        "before_others": first,
        "ms_per_vm": {
            "without_network": spread(|round| round.without),
            "with_network": spread(|round| round.with),
            "taken_from_the_pool": spread(|round| round.taken),
            "written_down": spread(|round| round.noted),
        },
        "added_ms": spread(|round| round.taken + round.noted + round.with - round.without),
        "policy_ms_per_vm": spread(|round| round.opened),
    }))
}

struct World {
    dir: PathBuf,
    count: usize,
    pool: Pool,
    without: Template,
    with: Template,
    broods: usize,
}

impl World {
    fn new(dir: &Path, count: usize) -> Result<Self> {
        let names = Directory::at(dir.join("netns"));
        let pool = Pool::start(Site::prepare(names)?, Upstream::Servers(Vec::new()), count)?;
        let lease = pool.take(1)?.pop().context("a network")?;
        let vmm = vmm()?;
        let template = |name: &str, tap: Option<&OwnedFd>| -> Result<Template> {
            let home = dir.join(name);
            fs::create_dir(&home)?;
            let shape = Shape { memory: GuestMemorySize::DEFAULT, disks: 1, net: tap.is_some(), balloon: true };
            let frozen = freeze(&vmm, &home, shape, tap.map(AsFd::as_fd))?;
            Template::start(&vmm, &home, &frozen, Logging::Usual)
        };
        let (without, with) = (template("without", None)?, template("with", Some(&lease.tap))?);
        drop(lease);
        Ok(Self { dir: dir.into(), count, pool, without, with, broods: 0 })
    }

    fn round(&mut self) -> Result<Round> {
        self.wait_until_full()?;
        let without = self.spawn(&[])?;
        let (leases, taken) = timed(|| self.pool.take(self.count))?;
        let noted = self.note(&leases)?;
        let (networks, taps): (Vec<_>, Vec<_>) =
            leases.into_iter().map(|Lease { network, tap }| (network, tap)).unzip();
        let with = self.spawn(&taps)?;
        let egress: Egress = POLICY.parse()?;
        let set = |network: &Arc<Network>| network.set(&egress, &Limits::default());
        let ((), opened) = timed(|| networks.iter().try_for_each(set))?;
        let each = |ms: f64| ms / f64::from(u32::try_from(self.count).unwrap_or(u32::MAX));
        let [without, with, taken, noted, opened] = [without, with, taken, noted, opened].map(each);
        Ok(Round { without, with, taken, noted, opened })
    }

    /// How long it takes until the last child's guest has run, with a network card if there are taps.
    fn spawn(&mut self, taps: &[OwnedFd]) -> Result<f64> {
        self.broods += 1;
        let template = if taps.is_empty() { &self.without } else { &self.with };
        let brood = Brood::spawn(template, &self.dir.join(format!("r{}", self.broods)), self.count, taps)?;
        let took = brood.timing.exited_us / 1e3;
        brood.end()?;
        Ok(took)
    }

    /// Writes down which networks they are, as the engine does in the directory of each child.
    fn note(&self, leases: &[Lease]) -> Result<f64> {
        let homes: Vec<PathBuf> = (0..leases.len()).map(|number| self.dir.join(format!("noted{number}"))).collect();
        homes.iter().try_for_each(fs::create_dir)?;
        let note = |(lease, home): (&Lease, &PathBuf)| -> Result<()> {
            let (network, staged) = (&lease.network, home.join(".network.json"));
            let text = json!({ "number": network.number(), "turn": network.turn(), "egress": "none", "limits": network.limits() });
            fs::write(&staged, text.to_string())?;
            Ok(fs::rename(staged, home.join("network.json"))?)
        };
        let ((), took) = timed(|| leases.iter().zip(&homes).try_for_each(note))?;
        homes.iter().try_for_each(fs::remove_dir_all)?;
        Ok(took)
    }

    /// All that was used has come back.
    fn wait_until_full(&self) -> Result<()> {
        let until = Instant::now() + REFILL;
        while self.pool.counts() != (self.count, 0) {
            if Instant::now() > until {
                bail!("of {} networks so many are ready and in use: {:?}", self.count, self.pool.counts());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// What came of it, and the milliseconds that it took.
fn timed<T, E: Into<anyhow::Error>>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, f64)> {
    let begun = Instant::now();
    let done = work().map_err(Into::into)?;
    Ok((done, begun.elapsed().as_secs_f64() * 1e3))
}
