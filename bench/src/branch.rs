//! What a branch of a running VM costs, beside what the kernel alone charges for it.
//!
//! On this host's KVM, with a guest that writes its memory all the time and says when it could not (`writer.S`): it needs
//! to run on hosts that cannot run Linux in a VM. In each round the kernel's share (`branch.c`) and forkd take turns, so
//! that whatever else the machine does hits both.

mod report;
mod round;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bench::tiny::{Frozen, Logging, Template, freeze_writer};
use serde::Deserialize;
use types::GuestMemorySize;

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
    /// The memory of the VMs
    #[arg(long, value_delimiter = ',', default_values = ["512M", "1536M", "4G"])]
    memory: Vec<GuestMemorySize>,
    /// How many MiB the source has written
    #[arg(long, value_delimiter = ',', default_values_t = [1, 100, 1000])]
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
    ensure!(Path::new("/dev/kvm").exists(), "there is no /dev/kvm here; `forkd doctor` says what can be done");
    ensure!(args.rounds > 0 && args.diverged.iter().all(|mib| *mib > 0), "nothing is measured by no round or no write");
    let goes_first = go_first();
    let mut rows = Vec::new();
    for memory in &args.memory {
        for diverged_mib in &args.diverged {
            let case = Case { memory: *memory, diverged_mib: *diverged_mib };
            let measured = case.fits()?.map_or_else(|| measure(case, args).map(Ok), |why| Ok(Err(why)))?;
            eprintln!(
                "{memory} with {diverged_mib} MiB written: {}",
                measured.as_ref().err().map_or("done", |why| why)
            );
            rows.push(Row { case, measured });
        }
    }
    report::print(args, goes_first, &rows)
}

impl Case {
    const fn bytes(self) -> u64 {
        self.diverged_mib.saturating_mul(MIB)
    }

    /// Why it cannot be measured here, if so.
    fn fits(self) -> Result<Option<String>> {
        let room = self.memory.bytes().min(HOLE).saturating_sub(GUESTS_OWN);
        if self.bytes() > room {
            return Ok(Some(format!("the guest can write {} MiB", room / MIB)));
        }
        let (needed, free) = (self.bytes().saturating_mul(COPIES).saturating_add(SLACK), available()?);
        Ok((needed > free).then(|| format!("it needs {} MiB of the host, {} are free", needed / MIB, free / MIB)))
    }
}

/// The memory that the host can give.
fn available() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
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
