//! Whether it pays that a template faults in the pages its children touch first.
//!
//! On this host's KVM, with a template and a guest of its own (`prefault.c`) and nothing of forkd's. In each round all
//! cases take turns, so that whatever else the machine does hits all of them. The template is as lucky as can be: it faults
//! in exactly what will be touched. Only where nothing will be, it faults in as much as for the largest case: that is what
//! a wrong guess costs.

mod report;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde::Deserialize;
use types::GuestMemorySize;

use crate::forkd::place;
use crate::process::go_first;
use crate::program::Program;

#[derive(Debug, clap::Args)]
pub(crate) struct PrefaultArgs {
    /// How many MiB a child touches first, half of the pages written and half read
    #[arg(long, value_delimiter = ',', default_values_t = [0, 4, 16, 64])]
    touched: Vec<u64>,
    /// How many children in a round
    #[arg(long, default_value_t = 20)]
    count: usize,
    /// How many rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Each VM's memory
    #[arg(long, default_value = "512M")]
    memory: GuestMemorySize,
    /// Where the compiled program goes
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// What a template does before it forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefault {
    Nothing,
    /// Maps the image's pages.
    Read,
    /// Makes them its own, for fork(2) to hand over.
    Write,
}

impl Prefault {
    /// What the others are compared with comes first.
    const ALL: [Self; 3] = [Self::Nothing, Self::Read, Self::Write];

    /// What `prefault.c` calls it.
    const fn word(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    const fn call(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Read => "MADV_POPULATE_READ",
            Self::Write => "MADV_POPULATE_WRITE",
        }
    }
}

/// What one child says.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Told {
    fork_us: f64,
    touched_us: f64,
    /// Of the fork and the child together.
    cpu_us: f64,
    private_kib: f64,
}

/// All children of a case, round by round.
#[derive(Debug)]
struct Row {
    touched_mib: u64,
    faulted_mib: u64,
    /// As [`Prefault::ALL`].
    told: [Vec<Vec<Told>>; 3],
}

pub(crate) fn run(args: &PrefaultArgs) -> Result<()> {
    ensure!(Path::new("/dev/kvm").exists(), "there is no /dev/kvm here; `forkd doctor` says what can be done");
    ensure!(args.rounds > 0 && args.count > 0, "nothing is measured by no round or no child");
    let goes_first = go_first();
    let most = args.touched.iter().copied().max().unwrap_or_default();
    let row = |touched_mib: &u64| {
        let faulted_mib = if *touched_mib == 0 { most } else { *touched_mib };
        Row { touched_mib: *touched_mib, faulted_mib, told: Default::default() }
    };
    let mut rows: Vec<Row> = args.touched.iter().map(row).collect();
    let dir = tempfile::tempdir_in(place(args.dir.as_deref()))?;
    let mut program = Program::start(dir.path(), "prefault", include_str!("../prefault.c"), args.memory)?;
    for round in 0..args.rounds {
        for row in &mut rows {
            // Who comes first changes too: after a turn the machine is not as it was before.
            for turn in 0..Prefault::ALL.len() {
                let which = (turn + round) % Prefault::ALL.len();
                let word = Prefault::ALL[which].word();
                let request = format!("{} {word} {} {}", args.count, row.faulted_mib, row.touched_mib);
                row.told[which].push(program.ask(&request)?);
            }
        }
        eprint!("\r{} of {} rounds ", round + 1, args.rounds);
    }
    report::print(args, goes_first, &rows)
}
