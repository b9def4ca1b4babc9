//! What a branch of a running VM costs, beside what the kernel alone charges for it.
//!
//! On this host's KVM, with a guest that writes its memory all the time and says when it could not (`writer.S`): it needs
//! to run on hosts that cannot run Linux in a VM. In each round the kernel's share (`branch.c`) and forkd take turns, so
//! that whatever else the machine does hits both. With `--linux` the guest is a Linux, wherever such VMs run ([`linux`]).

mod gaps;
mod linux;
mod report;
mod round;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bench::tiny::{Frozen, Logging, Template, freeze_writer};
use serde::Deserialize;
use types::{GuestMemorySize, Tag};

use crate::forkd::{place, vmm};
use crate::process::go_first;
use crate::program::Program;
use round::Round;

const MIB: u64 = 1 << 20;
/// What the guest does not write, below what it does.
const GUESTS_OWN: u64 = 32 * MIB;
/// The guest writes below the device hole only.
const HOLE: u64 = 3 << 30;
/// What a page that is written costs at most: in the image's cache, in the source, in its copy, and written down.
const COPIES: u64 = 4;
/// What everything else costs.
const SLACK: u64 = 512 * MIB;

#[derive(Debug, clap::Args)]
pub(crate) struct BranchArgs {
    /// The memory of the VMs; 512M, 1536M and 4G unless said, with --linux 512M
    #[arg(long, value_delimiter = ',')]
    memory: Vec<GuestMemorySize>,
    /// How many MiB the source has written; 1, 100 and 1000 unless said, with --linux 1 and 100
    #[arg(long, value_delimiter = ',')]
    diverged: Vec<u64>,
    /// How many rounds for each
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Where the VMs' files go
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where branches are written down
    #[arg(long)]
    to: Option<PathBuf>,
    /// Branches a warm Linux with Python, wherever VMs can run here
    #[arg(long, conflicts_with_all = ["dir", "to"])]
    linux: bool,
    /// Measures right here children of this snapshot, and prints only that
    #[arg(long, hide = true, requires = "linux")]
    here: Option<Tag>,
}

/// A source of some size that has written so much.
#[derive(Clone, Copy, Debug)]
struct Case {
    memory: GuestMemorySize,
    diverged_mib: u64,
}

/// All rounds of a case, or why there are none.
#[derive(Debug)]
struct Row {
    case: Case,
    measured: Result<Measured, String>,
}

#[derive(Debug, Default)]
struct Measured {
    forkd: Vec<Round>,
    floor: Vec<Floor>,
}

/// What the kernel alone takes, in microseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Floor {
    pause_us: f64,
    first_exit_us: f64,
    longest_gap_us: f64,
}

pub(crate) fn run(args: &BranchArgs) -> Result<()> {
    ensure!(args.rounds > 0 && args.diverged.iter().all(|mib| *mib > 0), "nothing is measured by no round or no write");
    if args.linux {
        return linux::run(args);
    }
    ensure!(Path::new("/dev/kvm").exists(), "there is no /dev/kvm here; `forkd doctor` says what can be done");
    let goes_first = go_first();
    let mut rows = Vec::new();
    for case in args.cases(&["512M", "1536M", "4G"], &[1, 100, 1000])? {
        let measured = case.fits()?.map_or_else(|| measure(case, args).map(Ok), |why| Ok(Err(why)))?;
        case.tell(measured.as_ref().err());
        rows.push(Row { case, measured });
    }
    report::print(args, goes_first, &rows)
}

impl BranchArgs {
    /// All that is asked for, or else these.
    fn cases(&self, memory: &[&str], diverged: &[u64]) -> Result<Vec<Case>> {
        let memory = match &self.memory[..] {
            [] => memory.iter().map(|size| size.parse()).collect::<Result<Vec<GuestMemorySize>, _>>()?,
            said => said.to_vec(),
        };
        let diverged = if self.diverged.is_empty() { diverged } else { &self.diverged };
        let case = |memory: &GuestMemorySize, mib: &u64| Case { memory: *memory, diverged_mib: *mib };
        Ok(memory.iter().flat_map(|memory| diverged.iter().map(move |mib| case(memory, mib))).collect())
    }
}

impl Case {
    const fn bytes(self) -> u64 {
        self.diverged_mib.saturating_mul(MIB)
    }

    /// Tells whoever waits how it went.
    fn tell(self, skipped: Option<&String>) {
        let how = skipped.map_or("done", |why| why);
        eprintln!("{} with {} MiB written: {how}", self.memory, self.diverged_mib);
    }

    /// Why it cannot be measured here, if so.
    fn fits(self) -> Result<Option<String>> {
        let room = self.memory.bytes().min(HOLE).saturating_sub(GUESTS_OWN);
        if self.bytes() > room {
            return Ok(Some(format!("the guest can write {} MiB", room / MIB)));
        }
        let (needed, free) = (
            self.bytes().saturating_mul(COPIES).saturating_add(SLACK),
            available(&std::fs::read_to_string("/proc/meminfo")?)?,
        );
        Ok((needed > free).then(|| format!("it needs {} MiB of the host, {} are free", needed / MIB, free / MIB)))
    }
}

/// The memory that a host can give, by its `/proc/meminfo`.
fn available(text: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("no MemAvailable")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("MemAvailable")?;
    Ok(kib << 10)
}

fn measure(case: Case, args: &BranchArgs) -> Result<Measured> {
    let dir = tempfile::tempdir_in(place(args.dir.as_deref()))?;
    let to = tempfile::tempdir_in(args.to.clone().unwrap_or_else(std::env::temp_dir))?;
    let mut floor = Program::start(dir.path(), "branch", include_str!("../branch.c"), case.memory)?;
    let pages = usize::try_from(case.bytes() / 4096)?;
    let vmm = vmm()?;
    let frozen: Frozen = freeze_writer(&vmm, dir.path(), case.memory, pages)?;
    let template = Template::start(&vmm, dir.path(), &frozen, Logging::Stages)?;
    let mut measured = Measured::default();
    for number in 0..args.rounds {
        measured.floor.push(floor.ask(&case.diverged_mib.to_string())?);
        let places =
            round::Places { dir: dir.path().join(format!("r{number}")), to: to.path().join(format!("r{number}")) };
        measured.forkd.push(round::play(&template, &frozen, &places)?);
    }
    Ok(measured)
}
