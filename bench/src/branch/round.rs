//! One branch, from a source that has written its pages to files that survive a loss of power.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bench::tiny::{Brood, Frozen, Report, Source, Template};

use super::gaps::Gaps;
use crate::spawn::stages;

/// How long the source is listened to before it is branched, and after all is done.
const LISTEN: Duration = Duration::from_millis(300);
/// How far the guest's clock may be off, as the host sees it.
const CLOCK_US: f64 = 2_000.0;

/// What a branch took, in microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    /// What the VMM says for how long the guest did not run.
    pub(super) pause_us: f64,
    /// The guest's longest gap before the branch was asked for: what the machine does to it anyway.
    pub(super) stall_before_us: f64,
    /// The guest's own time without a write around the branch.
    pub(super) gap_us: f64,
    /// Its longest gap soon after.
    pub(super) stall_early_us: f64,
    /// Its longest gap after, while a grandchild is born and the branch is written down.
    pub(super) stall_after_us: f64,
    /// From the request until a grandchild's guest left for the first time.
    pub(super) first_exit_us: f64,
    /// Bytes written down.
    pub(super) bytes: u64,
    /// From the request until these survive a loss of power.
    pub(super) durable_us: f64,
    /// Where the pause goes.
    pub(super) stages_us: BTreeMap<String, f64>,
}

/// Where files go, neither of which exists yet.
pub(super) struct Places {
    /// Of VMs.
    pub(super) dir: PathBuf,
    /// What is written down.
    pub(super) to: PathBuf,
}

pub(super) fn play(template: &Template, frozen: &Frozen, places: &Places) -> Result<Round> {
    fs::create_dir(&places.dir)?;
    fs::create_dir(&places.to)?;
    let mut source = Source::spawn(template, &places.dir.join("source"))?;
    source.work()?;
    let before = source.listen(LISTEN)?;
    let asked = Instant::now();
    let branch = source.branch(&places.dir)?;
    let answered = asked.elapsed();
    let brood = Brood::spawn(&branch.template, &places.dir.join("grandchild"), 1, &[])?;
    let first_exit_us = us(answered) + brood.timing.exited_us;
    // It writes without end, as the source does. Beside it and the writer, two cores are one too few, and what the
    // scheduler takes from the source in turn would pass for a stall.
    brood.end()?;
    let (written_down, written) = branch.template.write(&places.to, frozen)?;
    for file in written_down.own() {
        File::open(file)?.sync_all()?;
    }
    File::open(&places.to)?.sync_all()?;
    let durable_us = us(asked.elapsed());
    let after = source.listen(LISTEN)?;
    let clock = Clock::of(&before, after.last())?;
    let asked_us = us(asked.saturating_duration_since(clock.instant));
    let gaps: Vec<_> =
        after.iter().map(|(_, report)| (clock.since(report.at) - asked_us, clock.us(report.gap))).collect();
    let gaps = Gaps::of(&gaps, us(answered), CLOCK_US);
    let round = Round {
        pause_us: us(Duration::from_micros(branch.pause_us)),
        stall_before_us: before.iter().map(|(_, report)| clock.us(report.gap)).fold(0.0, f64::max),
        gap_us: gaps.pause,
        stall_early_us: gaps.early,
        stall_after_us: gaps.after,
        first_exit_us,
        bytes: written.memory_bytes + written.disk_bytes,
        durable_us,
        stages_us: stages::laps(&source.log(), stages::BRANCH).unwrap_or_default(),
    };
    drop(source);
    drop(branch);
    fs::remove_dir_all(&places.dir)?;
    fs::remove_dir_all(&places.to)?;
    Ok(round)
}

/// The guest's counter as the host's clock.
#[derive(Clone, Copy, Debug)]
struct Clock {
    ticks_per_us: f64,
    /// An instant, and what the counter was then.
    instant: Instant,
    ticks: u64,
}

#[expect(clippy::cast_precision_loss, reason = "a minute has fewer than 2^53 ticks")]
impl Clock {
    /// Hearing of a tick takes a moment, which matters the less the longer ago the first was; and of those near the branch,
    /// the one that was heard soonest says when a tick was.
    fn of(heard: &[(Instant, Report)], latest: Option<&(Instant, Report)>) -> Result<Self> {
        let (Some((from, first)), Some((to, last))) = (heard.first(), latest.or(heard.last())) else {
            anyhow::bail!("the guest told nothing")
        };
        let passed = to.duration_since(*from);
        ensure!(passed > LISTEN / 4, "the guest told too little: {heard:?}");
        let ticks_per_us = last.at.saturating_sub(first.at) as f64 / us(passed);
        let clock = Self { ticks_per_us, instant: *from, ticks: first.at };
        let lag = |(instant, report): &(Instant, Report)| us(instant.duration_since(*from)) - clock.since(report.at);
        let soonest = heard.iter().min_by(|one, two| lag(one).total_cmp(&lag(two)));
        Ok(soonest.map_or(clock, |(instant, report)| Self { instant: *instant, ticks: report.at, ..clock }))
    }

    fn us(&self, ticks: u64) -> f64 {
        ticks as f64 / self.ticks_per_us
    }

    /// Microseconds since its instant.
    fn since(&self, ticks: u64) -> f64 {
        self.us(ticks.saturating_sub(self.ticks))
    }
}

fn us(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_that_of_the_report_heard_soonest() {
        let now = Instant::now();
        let heard = |ms, at| (now + Duration::from_millis(ms), Report { at, gap: 0, passes: 2 });
        let before = [heard(10, 1_000_000), heard(105, 1_200_000)];
        let clock = Clock::of(&before, Some(&heard(210, 1_400_000))).unwrap();
        assert_eq!((clock.ticks, clock.us(2000)), (1_200_000, 1000.0));
        Clock::of(&[heard(10, 1), heard(11, 3)], None).unwrap_err();
    }
}
