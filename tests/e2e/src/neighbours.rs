//! Noisy neighbours: whoever takes all there is is stopped by its own limit, and who lives beside it hardly notices.

use anyhow::{Result, ensure};
use bench::noisy::{Answers, OFFENCES, Street};
use engine::{Removal, remove_snapshot};
use types::Tag;

use crate::Test;
use crate::egress::take;
use crate::host::Host;
use crate::internet::Internet;

/// To be run when nothing else runs: it is timed.
pub(crate) const TESTS: &[Test] = &[("neighbours::are_stopped_and_not_noticed", are_stopped_and_not_noticed)];

/// One for the neighbour, one for an offender, and one for the next.
const NETWORKS: usize = 3;
/// How often the neighbour is asked before and during each offence.
const SAMPLES: usize = 15;
/// How many times longer a neighbour may take.
const TIMES: f64 = 2.0;

/// That everybody is stopped by the one limit that it was given, that it gets no more than that, and that the neighbour
/// answers every time is asserted by [`Street`], with nothing taken off. It fails when a limit is not in force, not told,
/// or leaks.
///
/// How quickly the neighbour answers, at the median and at the 99th percentile, is compared with how it answered when nobody
/// was at it, in all quiet times of this run together. An emulated host's own pace drifts by nearly as much within a run, and
/// it stands still now and then for longer than a command takes; over all quiet times that has happened as well, and is in
/// what is compared with. It fails when an offender gets at what its neighbour needs, as one without its share of the CPU does
/// where there are few.
fn are_stopped_and_not_noticed(host: &Host) -> Result<()> {
    let internet = Internet::new(NETWORKS, &[])?;
    let (pool, tag): (_, Tag) = (internet.pool()?, "e2e-neighbours".parse()?);
    take(host, &tag, &pool)?;
    let listen = |at| internet.listen(at);
    let trials = Street { tag: &tag, dirs: &host.dirs, pool: &pool, listen: &listen, samples: SAMPLES }.try_all();
    remove_snapshot(&tag, Removal::Force, &host.dirs)?;
    let trials = trials?;
    ensure!(trials.len() == OFFENCES.len(), "{} were tried", trials.len());
    let quiet = Answers::together(trials.iter().map(|trial| &trial.before));
    for trial in &trials {
        let times = |percent: usize| {
            let (before, during) = (quiet.percentile(percent), trial.during.percentile(percent));
            let name = trial.offence.name;
            tell(&format!("{name}: p{percent} {before:.1} ms in peace, {during:.1} ms beside it"));
            ensure!(during <= before * TIMES, "beside {name} p{percent} is {during:.1} ms, and {before:.1} ms without");
            Ok(())
        };
        tell(&format!("{} was stopped after {:.1?}", trial.offence.name, trial.stopped_after));
        times(50)?;
        times(99)?;
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
fn tell(text: &str) {
    eprintln!("{text}");
}
