//! What the rounds come to: JSON on standard output, the same as a table and in words on standard error.

use std::fmt::Write;

use anyhow::Result;
use serde_json::{Value, json};

use super::{Prefault, PrefaultArgs, Row, Told};
use crate::forkd::host;
use crate::spread::{Spread, rounded};

/// What is gained or lost counts from this share on, and when it is in every round; else it is the machine's doing.
const NOTICEABLE: f64 = 0.05;

/// Prints all of it.
pub(super) fn print(args: &PrefaultArgs, goes_first: bool, rows: &[Row]) -> Result<()> {
    eprint!("{}", table(rows)?);
    let conclusions: Vec<Value> = [Prefault::Read, Prefault::Write].map(|how| conclusion(how, rows)).into();
    for conclusion in &conclusions {
        eprintln!("{}", conclusion["words"].as_str().unwrap_or_default());
    }
    let report = json!({
        "bench": "prefault",
        "memory_mib": args.memory.bytes() >> 20,
        "children": args.count * args.rounds,
        "rounds": args.rounds,
        "goes_first": goes_first,
        "host": host(),
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
        "conclusions": conclusions,
    });
    println!("{report:#}");
    Ok(())
}

impl Row {
    fn told(&self, how: Prefault) -> impl Iterator<Item = &Vec<Told>> {
        Prefault::ALL.iter().zip(&self.told).filter(move |(one, _)| **one == how).flat_map(|(_, told)| told)
    }

    fn spread(&self, how: Prefault, of: fn(&Told) -> f64) -> Spread {
        Spread::of(self.told(how).flatten().map(of))
    }

    /// CPU time: what else a machine does changes the time on a clock by more than is looked for here.
    fn cpu(&self, how: Prefault) -> Spread {
        self.spread(how, |told| told.cpu_us)
    }

    /// The median against that of doing nothing.
    fn times(&self, how: Prefault) -> f64 {
        self.cpu(how).over(self.cpu(Prefault::Nothing)).median
    }

    /// Whether it gains or costs in every round, each against doing nothing in the same round.
    fn effect(&self, how: Prefault) -> Effect {
        let median = |told: &Vec<Told>| Spread::of(told.iter().map(|told| told.cpu_us)).median;
        let times = self.told(how).zip(self.told(Prefault::Nothing)).map(|(one, other)| median(one) / median(other));
        Effect::of(&times.collect::<Vec<_>>())
    }

    fn json(&self) -> Value {
        let variants = Prefault::ALL.map(|how| {
            json!({
                "template": how.call(),
                "faulted_mib": if how == Prefault::Nothing { 0 } else { self.faulted_mib },
                "fork_us": self.spread(how, |told| told.fork_us).json(),
                "touched_us": self.spread(how, |told| told.touched_us).json(),
                "cpu_us": self.cpu(how).json(),
                "cpu_times_nothing": rounded(self.times(how)),
                "effect": self.effect(how).word(),
                "private_kib": self.spread(how, |told| told.private_kib).json(),
            })
        });
        json!({"touched_mib": self.touched_mib, "variants": variants})
    }
}

/// What faulting in does to a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Gains,
    None,
    Costs,
}

impl Effect {
    fn of(times: &[f64]) -> Self {
        match times {
            [] => Self::None,
            times if times.iter().all(|times| *times < 1.0 - NOTICEABLE) => Self::Gains,
            times if times.iter().all(|times| *times > 1.0 + NOTICEABLE) => Self::Costs,
            _ => Self::None,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Gains => "gains",
            Self::None => "none",
            Self::Costs => "costs",
        }
    }
}

/// Whether a way of faulting in pays where it guessed right, and what it costs where it did not.
fn conclusion(how: Prefault, rows: &[Row]) -> Value {
    let lucky = || rows.iter().filter(|row| row.touched_mib > 0);
    let best = lucky().map(|row| row.times(how)).fold(f64::NAN, f64::min);
    let worst = lucky().map(|row| row.times(how)).fold(f64::NAN, f64::max);
    let wrong = rows.iter().find(|row| row.touched_mib == 0);
    let wasted_us = wrong.map(|row| row.cpu(how).median - row.cpu(Prefault::Nothing).median);
    let verdict = verdict(&lucky().map(|row| row.effect(how)).collect::<Vec<_>>());
    let mut words = format!("{}: {best:.2} to {worst:.2} times the CPU time of nothing, {verdict}", how.call());
    if let (Some(wrong), Some(wasted_us)) = (wrong, wasted_us) {
        words += &format!("; {:+.2} ms a child where {} MiB are not touched", wasted_us / 1e3, wrong.faulted_mib);
    }
    json!({"template": how.call(), "best": rounded(best), "worst": rounded(worst), "verdict": verdict,
        "wasted_cpu_us": wasted_us.map(rounded), "words": words})
}

fn verdict(effects: &[Effect]) -> &'static str {
    match (effects.contains(&Effect::Gains), effects.contains(&Effect::Costs)) {
        (true, false) => "which pays",
        (true, true) => "which pays here and costs there",
        (false, true) => "which costs",
        (false, false) => "which is no difference that every round shows",
    }
}

fn table(rows: &[Row]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    writeln!(
        text,
        "\n       MiB       template             fork(2), us     touched, ms   CPU, ms    times    private"
    )?;
    writeln!(text, "touched faulted  does                 min  median    min  median    median  nothing        KiB")?;
    for row in rows {
        for how in Prefault::ALL {
            let (fork, touched) = (row.spread(how, |told| told.fork_us), row.spread(how, |told| told.touched_us));
            writeln!(
                text,
                "{:>7}{:>8}  {:<19}{:>5.0}{:>8.0}{:>7.1}{:>8.1}{:>10.2}{:>9.2}{:>11.0}",
                row.touched_mib,
                if how == Prefault::Nothing { 0 } else { row.faulted_mib },
                how.call(),
                fork.min,
                fork.median,
                touched.min / 1e3,
                touched.median / 1e3,
                row.cpu(how).median / 1e3,
                row.times(how),
                row.spread(how, |told| told.private_kib).median,
            )?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(touched_mib: u64, cpu_us: [[f64; 2]; 3]) -> Row {
        let round = |cpu_us| vec![Told { fork_us: 1.0, touched_us: 2.0, cpu_us, private_kib: 4.0 }; 3];
        Row { touched_mib, faulted_mib: touched_mib.max(64), told: cpu_us.map(|rounds| rounds.map(round).into()) }
    }

    #[test]
    fn the_conclusion_is_the_numbers() {
        let rows = [
            row(0, [[1000.0, 1000.0], [1000.0, 1000.0], [3000.0, 3000.0]]),
            row(4, [[2000.0, 2000.0], [1000.0, 2040.0], [1800.0, 1800.0]]),
            row(64, [[100.0, 100.0], [99.0, 99.0], [120.0, 120.0]]),
        ];
        let (read, write) = (conclusion(Prefault::Read, &rows), conclusion(Prefault::Write, &rows));
        assert_eq!((&read["best"], &read["worst"]), (&json!(0.99), &json!(1.02)));
        assert_eq!(read["verdict"], "which is no difference that every round shows");
        assert_eq!(
            write["words"],
            "MADV_POPULATE_WRITE: 0.90 to 1.20 times the CPU time of nothing, which pays here and costs there; \
             +2.00 ms a child where 64 MiB are not touched"
        );
    }

    #[test]
    fn what_not_every_round_shows_is_no_effect() {
        assert_eq!(Effect::of(&[0.5, 0.9]), Effect::Gains);
        assert_eq!(Effect::of(&[0.5, 0.97]), Effect::None);
        assert_eq!(Effect::of(&[1.1, 1.5]), Effect::Costs);
        assert_eq!(Effect::of(&[]), Effect::None);
    }
}
