//! The branch of a running Linux: a child of a warm Python in which one process writes memory and a file (`writer.py`), and
//! another notices whenever it did not run (`stamper.py`).
//!
//! It is measured where VMs run ([`Site`]); numbers of the emulated host are never numbers of hardware.

mod guest;
mod report;
mod round;

use anyhow::Result;
use types::Tag;

use super::{BranchArgs, COPIES, Case, MIB, SLACK, available};
use crate::site::Site;
use round::Round;

/// What the snapshot is called for as long as it is there.
const OWN_TAG: &str = "bench-branch";
const RECIPE: &str = "python-numpy";
/// What a Linux with a warm Python needs of its memory for itself.
const GUESTS_OWN: u64 = 256 * MIB;

/// All rounds of a case, or why there are none.
#[derive(Debug)]
struct Row {
    case: Case,
    measured: Result<Vec<Round>, String>,
}

/// Measures here, or has it measured where VMs run and prints the report.
pub(super) fn run(args: &BranchArgs) -> Result<()> {
    let cases = args.cases(&["512M"], &[1, 100])?;
    if let Some(tag) = &args.here {
        let rounds = cases.iter().flat_map(|case| std::iter::repeat_n(case, args.rounds));
        let rounds = rounds.map(|case| round::play(tag, case.diverged_mib)).collect::<Result<Vec<_>>>()?;
        println!("{}", serde_json::to_string(&rounds)?);
        return Ok(());
    }
    let (site, tag) = (Site::find()?, OWN_TAG.parse()?);
    let mut rows = Vec::new();
    for same_memory in cases.chunk_by(|one, two| one.memory == two.memory) {
        rows.extend(measure(&site, &tag, same_memory, args.rounds)?);
    }
    report::print(args.rounds, &site, &rows)
}

/// Cases of the same memory share a snapshot, and need none if there is no room for any.
fn measure(site: &Site, tag: &Tag, cases: &[Case], rounds: usize) -> Result<Vec<Row>> {
    let free = available(&site.read("/proc/meminfo")?)?;
    let skipped: Vec<_> = cases.iter().map(|case| (case, why_not(*case, free))).collect();
    let row = |(case, why): &(&Case, Option<String>)| -> Result<Row> {
        let measured = match why {
            Some(why) => Err(why.clone()),
            None => Ok(site.ask(&[
                "branch",
                "--linux",
                "--here",
                tag.as_str(),
                "--diverged",
                &case.diverged_mib.to_string(),
                "--rounds",
                &rounds.to_string(),
            ])?),
        };
        case.tell(why.as_ref());
        Ok(Row { case: **case, measured })
    };
    let all = || skipped.iter().map(row).collect();
    match cases.first() {
        Some(case) if skipped.iter().any(|(_, why)| why.is_none()) => {
            site.with_snapshot(tag, &["--recipe", RECIPE, "--memory", &case.memory.to_string()], all)
        }
        _ => all(),
    }
}

/// Why it cannot be measured on a host with so much free memory, if so.
fn why_not(case: Case, free: u64) -> Option<String> {
    let room = case.memory.bytes().saturating_sub(GUESTS_OWN);
    if case.bytes() > room {
        return Some(format!("the guest can write {} MiB", room / MIB));
    }
    let needed = case.bytes().saturating_mul(COPIES).max(case.memory.bytes()).saturating_add(SLACK);
    (needed > free).then(|| format!("it needs {} MiB of the host, {} are free", needed / MIB, free / MIB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_not_tried() {
        let case = |memory: &str, diverged_mib| Case { memory: memory.parse().unwrap(), diverged_mib };
        assert_eq!(why_not(case("512M", 100), 2048 * MIB), None);
        assert_eq!(why_not(case("512M", 300), 2048 * MIB).as_deref(), Some("the guest can write 256 MiB"));
        let small = "it needs 4608 MiB of the host, 4000 are free";
        assert_eq!(why_not(case("4G", 1), 4000 * MIB).as_deref(), Some(small));
        assert_eq!(why_not(case("4G", 1000), 4608 * MIB), None);
        assert!(why_not(case("4G", 1100), 4700 * MIB).is_some());
    }
}
