//! Where the time of a spawn goes, as the children's logs tell it.
//!
//! Between the request and a child's first instant lies `fork`; between the end of its own last stage and the guest's
//! first exit, and with it the start of the vCPU's thread, `first exit`. So the means of all stages add up to the mean time from the request to the first exit.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use bench::tiny::Brood;

/// What comes before and after what a child times itself.
const FORK: &str = "fork";
const FIRST_EXIT: &str = "first exit";
/// How a line of stages begins, after what every line has.
const MARK: &str = "stages: begun ";
/// The part of the VMM that logs those of a branch.
pub(crate) const BRANCH: &str = "::branch]";

/// The mean of each stage over a brood, in microseconds.
pub(crate) fn of(brood: &Brood) -> Result<BTreeMap<String, f64>> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    let mut settled_us = 0.0;
    for number in 0..brood.pids.len() {
        let (begun_us, laps) = parse(&brood.log_of(number)?)?;
        let fork_us = begun_us - brood.timing.asked_at_us;
        settled_us += fork_us + laps.iter().map(|(_, us)| us).sum::<f64>();
        for (stage, us) in laps.into_iter().chain([(FORK.to_owned(), fork_us)]) {
            *sums.entry(stage).or_default() += us;
        }
    }
    let count = f64::from(u32::try_from(brood.pids.len())?);
    let mut means: BTreeMap<String, f64> = sums.into_iter().map(|(stage, sum)| (stage, sum / count)).collect();
    means.insert(FIRST_EXIT.to_owned(), brood.timing.mean_exited_us - settled_us / count);
    Ok(means)
}

/// The stages that a part of the VMM has logged last, in microseconds.
pub(crate) fn laps(log: &str, part: &str) -> Result<BTreeMap<String, f64>> {
    let line = log.lines().rfind(|line| line.contains(part) && line.contains(MARK)).context("no stages were logged")?;
    Ok(parse(line)?.1.into_iter().collect())
}

fn parse(log: &str) -> Result<(f64, Vec<(String, f64)>)> {
    let line = log.lines().find_map(|line| line.split_once(MARK)).context("a child logged no stages")?.1;
    let mut fields = line.split(", ");
    let begun: f64 = fields.next().unwrap_or_default().parse().context("a child's first instant")?;
    let lap = |field: &str| -> Result<(String, f64)> {
        let (name, us) = field.rsplit_once(' ').context("a stage without a time")?;
        Ok((name.to_owned(), us.parse()?))
    };
    let laps = fields.map(lap).collect::<Result<Vec<_>>>()?;
    ensure!(!laps.is_empty(), "a child logged an empty list of stages");
    Ok((begun, laps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stages_is_read() {
        let log = "[INFO  x] hello\n[DEBUG forkd_vmm::spawn] stages: begun 1000, vm 20, first thing 3\n";
        let laps = vec![("vm".to_owned(), 20.0), ("first thing".to_owned(), 3.0)];
        assert_eq!(parse(log).unwrap(), (1000.0, laps));
        parse("[INFO  x] hello\n").unwrap_err();
        parse("stages: begun 5\n").unwrap_err();
    }
}
