//! What the rounds come to: JSON on standard output, the same as a table on standard error.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use serde_json::{Value, json};

use super::round::Round;
use super::{BranchArgs, Floor, Measured, Row};
use crate::forkd::host;
use crate::spread::{Spread, rounded};

/// A pause is at most this many times the kernel's share, ...
const FLOOR_GOAL: f64 = 1.5;
/// ... and this much more.
const FLOOR_SLACK_US: f64 = 2000.0;
/// Nothing that comes after stalls the guest for longer than this many pauses.
const STALL_GOAL: f64 = 2.0;

/// Prints both.
pub(super) fn print(args: &BranchArgs, goes_first: bool, rows: &[Row]) -> Result<()> {
    eprint!("{}", table(rows)?);
    let report = json!({
        "bench": "branch",
        "rounds": args.rounds,
        "goes_first": goes_first,
        "host": host(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    });
    println!("{report:#}");
    Ok(())
}

fn row(row: &Row) -> Value {
    let mut json = json!({"memory_mib": row.case.memory.bytes() >> 20, "diverged_mib": row.case.diverged_mib});
    match &row.measured {
        Ok(measured) => json["measured"] = measured.json(),
        Err(why) => json["skipped"] = json!(why),
    }
    json
}

impl Measured {
    fn ours(&self, of: impl Fn(&Round) -> f64) -> Spread {
        Spread::of(self.forkd.iter().map(of))
    }

    fn floors(&self, of: impl Fn(&Floor) -> f64) -> Spread {
        Spread::of(self.floor.iter().map(of))
    }

    fn json(&self) -> Value {
        let (pause, floor) = (self.ours(|round| round.pause_us), self.floors(|round| round.pause_us));
        let limit = floor.median.mul_add(FLOOR_GOAL, FLOOR_SLACK_US);
        let (after, before) = (self.ours(|round| round.stall_after_us), self.ours(|round| round.stall_before_us));
        json!({
            "pause_us": pause.json(),
            "guest_gap_us": self.ours(|round| round.gap_us).json(),
            "stall_before_us": before.json(),
            "stall_100_ms_after_us": self.ours(|round| round.stall_early_us).json(),
            "stall_after_us": after.json(),
            "first_exit_us": self.ours(|round| round.first_exit_us).json(),
            "written_bytes": self.forkd.iter().map(|round| round.bytes).max(),
            "durable_us": self.ours(|round| round.durable_us).json(),
            "stages_us": self.stages(),
            "floor": {
                "pause_us": floor.json(),
                "first_exit_us": self.floors(|round| round.first_exit_us).json(),
                "stall_after_us": self.floors(|round| round.longest_gap_us).json(),
            },
            "times_the_floor": pause.over(floor).json(),
            "goals": {
                "pause_us": {"found": rounded(pause.median), "limit": rounded(limit), "met": pause.median <= limit},
                "stall_over_pause": {
                    "found": rounded(after.median / pause.median),
                    "limit": STALL_GOAL,
                    "met": after.median <= pause.median * STALL_GOAL,
                    "without_a_branch": rounded(before.median / pause.median),
                },
            },
        })
    }

    /// The median of each.
    fn stages(&self) -> BTreeMap<&str, f64> {
        let names = self.forkd.first().map(|round| round.stages_us.keys()).into_iter().flatten();
        let of = |name: &String, round: &Round| round.stages_us.get(name).copied().unwrap_or_default();
        names.map(|name| (name.as_str(), self.ours(|round| of(name, round)).median)).collect()
    }
}

fn table(rows: &[Row]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    writeln!(
        text,
        "\n       MiB       pause, ms       times    longest stall, ms    first exit, ms   written  durable"
    )?;
    writeln!(text, "memory wrote    forkd  kernel  kernel  before  after  kernel   forkd  kernel       MiB       ms")?;
    for row in rows {
        write!(text, "{:>6}{:>6}", row.case.memory.bytes() >> 20, row.case.diverged_mib)?;
        let Ok(measured) = &row.measured else {
            writeln!(text, "    not measured")?;
            continue;
        };
        let ms = |of: fn(&Round) -> f64| measured.ours(of).median / 1e3;
        let kernel = |of: fn(&Floor) -> f64| measured.floors(of).median / 1e3;
        writeln!(
            text,
            "{:>9.2}{:>8.2}{:>8.2}{:>8.2}{:>7.2}{:>8.2}{:>8.2}{:>8.2}{:>10.1}{:>9.1}",
            ms(|round| round.pause_us),
            kernel(|round| round.pause_us),
            ms(|round| round.pause_us) / kernel(|round| round.pause_us),
            ms(|round| round.stall_before_us),
            ms(|round| round.stall_after_us),
            kernel(|round| round.longest_gap_us),
            ms(|round| round.first_exit_us),
            kernel(|round| round.first_exit_us),
            measured.forkd.iter().map(|round| round.bytes).max().map_or(0, |bytes| bytes >> 10) as f64 / 1024.0,
            ms(|round| round.durable_us),
        )?;
    }
    Ok(text)
}
