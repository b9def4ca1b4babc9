//! Whether a spawn costs the same however deep the chain of snapshots is that its template was loaded from.
//!
//! Each link: a child writes some pages, is branched, and the branch is written down as what differs from its parent and
//! loaded again, in a process that knows nothing but the files. Templates of all depths then live side by side and take
//! turns, so that whatever else the machine does hits all of them.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use bench::tiny::{Brood, Frozen, Logging, Source, Template, freeze_writer};
use serde_json::{Value, json};
use types::GuestMemorySize;

use crate::forkd::{host, place, vmm};
use crate::process::go_first;
use crate::spawn::take_descriptors;
use crate::spread::{Spread, rounded};

/// Any depth's spawn is at most this many times the one of depth 0.
const GOAL: f64 = 1.05;

#[derive(Debug, clap::Args)]
pub(crate) struct ChainArgs {
    /// At which depths spawns are timed
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 3, 8, 32])]
    depths: Vec<usize>,
    /// How many VMs at once
    #[arg(long, default_value_t = 100)]
    count: usize,
    /// How many rounds
    #[arg(long, default_value_t = 40)]
    rounds: usize,
    /// How many pages each link writes
    #[arg(long, default_value_t = 1024)]
    pages: usize,
    /// Each VM's memory
    #[arg(long, default_value = "512M")]
    memory: GuestMemorySize,
    /// Where the VMs' files go
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// A template at the end of so many links.
#[derive(Debug)]
struct Link {
    frozen: Frozen,
    template: Template,
    /// What its files hold above its parent.
    bytes: u64,
}

pub(crate) fn run(args: &ChainArgs) -> Result<()> {
    ensure!(Path::new("/dev/kvm").exists(), "there is no /dev/kvm here; `forkd doctor` says what can be done");
    ensure!(args.count > 0 && args.rounds > 0 && args.pages > 0, "nothing is measured by no VM, no round or no write");
    take_descriptors()?;
    let goes_first = go_first();
    let dir = tempfile::tempdir_in(place(args.dir.as_deref()))?;
    let links = grow(dir.path(), args)?;
    let timed = args.depths.iter().filter_map(|depth| Some((*depth, links.get(*depth)?))).collect::<Vec<_>>();
    let mut per_vm_ms: Vec<Vec<f64>> = vec![Vec::new(); timed.len()];
    let count = f64::from(u32::try_from(args.count)?);
    for round in 0..args.rounds {
        // Who comes first changes too: after a round the machine is not as it was before.
        for turn in 0..timed.len() {
            let which = (turn + round) % timed.len();
            let (depth, link) = timed[which];
            let brood = Brood::spawn(&link.template, &dir.path().join(format!("r{round}d{depth}")), args.count, &[])?;
            per_vm_ms[which].push(brood.timing.exited_us / count / 1e3);
            brood.end()?;
        }
    }
    print(args, goes_first, &timed, &per_vm_ms);
    Ok(())
}

/// A chain as long as the deepest, with a template at each link.
fn grow(dir: &Path, args: &ChainArgs) -> Result<Vec<Link>> {
    let vmm = vmm()?;
    let home = |depth: usize| -> Result<PathBuf> {
        let home = dir.join(format!("link{depth}"));
        std::fs::create_dir(&home)?;
        Ok(home)
    };
    let first = home(0)?;
    let frozen = freeze_writer(&vmm, &first, args.memory, args.pages)?;
    let template = Template::start(&vmm, &first, &frozen, Logging::Usual)?;
    let mut links = vec![Link { frozen, template, bytes: 0 }];
    for depth in 1..=args.depths.iter().copied().max().unwrap_or_default() {
        let home = home(depth)?;
        let link = links.last().map(|parent| link(&vmm, &home, parent)).transpose()?;
        links.extend(link);
        eprint!("\r{depth} links ");
    }
    eprintln!();
    Ok(links)
}

fn link(vmm: &Path, home: &Path, parent: &Link) -> Result<Link> {
    let branched = home.join("branched");
    std::fs::create_dir(&branched)?;
    let mut source = Source::spawn(&parent.template, &home.join("source"))?;
    source.work()?;
    let branch = source.branch(&branched)?;
    drop(source);
    let (frozen, written) = branch.template.write(home, &parent.frozen)?;
    drop(branch);
    let template = Template::start(vmm, home, &frozen, Logging::Usual)?;
    Ok(Link { frozen, template, bytes: written.memory_bytes + written.disk_bytes })
}

fn print(args: &ChainArgs, goes_first: bool, timed: &[(usize, &Link)], per_vm_ms: &[Vec<f64>]) {
    let spreads: Vec<Spread> = per_vm_ms.iter().map(|rounds| Spread::of(rounds.iter().copied())).collect();
    // Each against the one of the same round.
    let shallow = timed.iter().zip(per_vm_ms).find(|((depth, _), _)| *depth == 0).map(|(_, rounds)| rounds);
    let over =
        |rounds: &[f64], shallow: &Vec<f64>| Spread::of(rounds.iter().zip(shallow).map(|(one, other)| one / other));
    let times: Vec<Option<Spread>> = per_vm_ms.iter().map(|rounds| Some(over(rounds, shallow?))).collect();
    eprintln!(
        "each link writes {} KiB\n depth   ms per VM, min  median  times depth 0   loading, ms   written, KiB",
        args.pages * 4
    );
    let row = |(((depth, link), spread), over): ((&(usize, &Link), &Spread), &Option<Spread>)| -> Value {
        let median = over.map_or(f64::NAN, |over| over.median);
        let loading_ms = std::time::Duration::from_micros(link.template.setup_us).as_secs_f64() * 1e3;
        eprintln!(
            "{depth:>6}{:>17.3}{:>8.3}{median:>15.3}{loading_ms:>14.1}{:>15}",
            spread.min,
            spread.median,
            link.bytes >> 10,
        );
        json!({
            "depth": depth,
            "per_vm_ms": spread.json(),
            "times_depth_0": over.map(|over| rounded(over.median)),
            "load_ms": rounded(loading_ms),
            "written_bytes": link.bytes,
        })
    };
    let rows: Vec<Value> = timed.iter().zip(&spreads).zip(&times).map(row).collect();
    let worst = times.iter().flatten().map(|times| times.median).max_by(f64::total_cmp);
    let report = json!({
        "bench": "chain",
        "memory_mib": args.memory.bytes() >> 20,
        "count": args.count,
        "rounds": args.rounds,
        "diverged_bytes": args.pages * 4096,
        "goes_first": goes_first,
        "host": host(),
        "rows": rows,
        "goals": {"times_depth_0": worst.map(|found| json!({"found": rounded(found), "limit": GOAL, "met": found <= GOAL}))},
    });
    println!("{report:#}");
}
