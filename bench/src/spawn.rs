//! What a spawn costs, beside what the kernel alone charges for it.
//!
//! On this host's KVM, with a guest of a dozen instructions: it needs to run on hosts that cannot run Linux in a VM. In
//! each round the floor (`floor.c`) and forkd take turns, so that whatever else the machine does hits both. A spawn ends
//! with the first exit of the last child's guest, and all children are alive then.

mod floor;
mod report;
pub(crate) mod stages;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bench::tiny::{Brood, Frozen, Logging, Shape, Template, freeze};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use types::GuestMemorySize;

use crate::forkd::{place, vmm};
use crate::process::{Memory, cpu_us};
use floor::Floor;

/// Of how many children at most the memory is looked at.
const LOOKED_AT: usize = 50;
/// One spawn alone, and many at once: stages are told of both.
const STAGED: [usize; 2] = [1, 100];

#[derive(Debug, clap::Args)]
pub(crate) struct SpawnArgs {
    /// How many VMs at once
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100, 1000])]
    counts: Vec<usize>,
    /// How many rounds for each count
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Each VM's memory
    #[arg(long, default_value = "512M")]
    memory: GuestMemorySize,
    /// Each VM's writable disks, beside vsock and rng
    #[arg(long, default_value_t = 1)]
    disks: usize,
    /// Gives each VM a balloon, as VMs of Linux have
    #[arg(long)]
    balloon: bool,
    /// Where the VMs' files go
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// One round, in microseconds.
#[derive(Clone, Debug, Default)]
struct Round {
    /// Until the last child's first exit.
    wall_us: f64,
    /// Until the last child said that its vCPUs run.
    started_us: f64,
    /// CPU time of the template and the children.
    cpu_us: f64,
}

/// All rounds with the same number of VMs.
#[derive(Debug)]
struct Row {
    count: usize,
    forkd: Vec<Round>,
    /// By its kind.
    floor: BTreeMap<&'static str, Vec<floor::Round>>,
    memory: Vec<Memory>,
    /// Mean microseconds, where they were told.
    stages: Option<BTreeMap<String, f64>>,
}

pub(crate) fn run(args: &SpawnArgs) -> Result<()> {
    ensure!(Path::new("/dev/kvm").exists(), "there is no /dev/kvm here; `forkd doctor` says what can be done");
    ensure!(args.counts.iter().all(|count| *count > 0) && args.rounds > 0, "nothing is measured by no VM or no round");
    take_descriptors()?;
    let dir = tempfile::tempdir_in(place(args.dir.as_deref()))?;
    let mut world = World::new(dir.path(), args)?;
    let rows = args.counts.iter().map(|count| world.row(*count, args.rounds)).collect::<Result<Vec<_>>>()?;
    report::print(args, &rows)
}

/// A brood is watched by a descriptor per child.
pub(crate) fn take_descriptors() -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).context("the limit of open files")
}

/// What takes turns.
struct World {
    dir: PathBuf,
    floor: Floor,
    quiet: Template,
    telling: Template,
    broods: usize,
}

impl World {
    fn new(dir: &Path, args: &SpawnArgs) -> Result<Self> {
        let vmm = vmm()?;
        let shape = Shape { memory: args.memory, disks: args.disks, net: false, balloon: args.balloon };
        let frozen: Frozen = freeze(&vmm, dir, shape, None)?;
        let template = |name: &str, logging| -> Result<Template> {
            let home = dir.join(name);
            std::fs::create_dir(&home)?;
            Template::start(&vmm, &home, &frozen, logging)
        };
        let (quiet, telling) = (template("quiet", Logging::Usual)?, template("telling", Logging::Stages)?);
        Ok(Self { dir: dir.into(), floor: Floor::start(dir, args.memory)?, quiet, telling, broods: 0 })
    }

    fn row(&mut self, count: usize, rounds: usize) -> Result<Row> {
        let mut row = Row { count, forkd: Vec::new(), floor: BTreeMap::new(), memory: Vec::new(), stages: None };
        for _ in 0..rounds {
            for kind in floor::BARE.into_iter().chain([floor::WITH_PIT]) {
                row.floor.entry(kind).or_default().push(self.floor.round(count, kind)?);
            }
            self.round(&mut row)?;
        }
        if STAGED.contains(&count) {
            row.stages = Some(self.stages(count, rounds)?);
        }
        eprintln!("{count} at once: {rounds} rounds");
        Ok(row)
    }

    fn brood_dir(&mut self) -> PathBuf {
        self.broods += 1;
        self.dir.join(format!("r{}", self.broods))
    }

    fn round(&mut self, row: &mut Row) -> Result<()> {
        let dir = self.brood_dir();
        let before = cpu_us(self.quiet.pid())?;
        let brood = Brood::spawn(&self.quiet, &dir, row.count, &[])?;
        let mut used = cpu_us(self.quiet.pid())? - before;
        for pid in &brood.pids {
            used += cpu_us(pid.unsigned_abs())?;
        }
        for pid in brood.pids.iter().take(LOOKED_AT) {
            row.memory.push(Memory::of(pid.unsigned_abs())?);
        }
        let timing = brood.timing;
        row.forkd.push(Round { wall_us: timing.exited_us, started_us: timing.started_us, cpu_us: used });
        brood.end()
    }

    /// The round whose spawn was quickest: what slowed the others down was not the spawn.
    fn stages(&mut self, count: usize, rounds: usize) -> Result<BTreeMap<String, f64>> {
        let mut best = (f64::INFINITY, BTreeMap::new());
        for _ in 0..rounds {
            let dir = self.brood_dir();
            let brood = Brood::spawn(&self.telling, &dir, count, &[])?;
            if brood.timing.exited_us < best.0 {
                best = (brood.timing.exited_us, stages::of(&brood)?);
            }
            brood.end()?;
        }
        Ok(best.1)
    }
}
