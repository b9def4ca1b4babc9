//! What the rounds come to: JSON on standard output, the same as a table on standard error.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use serde_json::{Value, json};

use super::{Row, SpawnArgs, floor};
use crate::forkd::host;
use crate::spread::{Spread, rounded};

/// A spawn of 100 takes at most this many times what the floor takes.
const FLOOR_GOAL: f64 = 1.5;
/// A VM of 1000 takes at most this many times what one of 100 takes.
const GROWTH_GOAL: f64 = 1.3;
/// Memory of a child's own.
const MEMORY_GOAL_KIB: f64 = 400.0;
/// In the order in which they happen.
const STAGES: [&str; 10] =
    ["fork", "directory", "devices", "vm", "memory", "irqchip", "vcpu", "state", "wiring", "first exit"];

/// Prints both.
pub(super) fn print(args: &SpawnArgs, rows: &[Row]) -> Result<()> {
    let summaries: Vec<Summary> = rows.iter().map(Summary::of).collect();
    eprint!("{}", table(&summaries)?);
    let report = json!({
        "bench": "spawn",
        "memory_mib": args.memory.bytes() >> 20,
        "disks": args.disks,
        "balloon": args.balloon,
        "host": host(),
        "rows": summaries.iter().map(Summary::json).collect::<Vec<_>>(),
        "goals": goals(&summaries),
    });
    println!("{report:#}");
    Ok(())
}

/// Per VM, in milliseconds.
#[derive(Debug)]
struct Summary {
    count: usize,
    rounds: usize,
    wall: Spread,
    started: Spread,
    cpu: Spread,
    floor_kind: &'static str,
    floor_wall: Spread,
    floor_with_pit: Spread,
    floor_cpu: Spread,
    private_kib: Spread,
    proportional_kib: Spread,
    stages: Option<BTreeMap<String, f64>>,
    floor_stages: BTreeMap<String, f64>,
}

impl Summary {
    fn of(row: &Row) -> Self {
        let count = f64::from(u32::try_from(row.count).unwrap_or(u32::MAX));
        let each = move |us: f64| us / count / 1e3;
        let quickest = |rounds: &[floor::Round]| Spread::of(rounds.iter().map(|round| round.wall_us)).min;
        let rounds_of = |kind: &str| row.floor.get(kind).map(Vec::as_slice).unwrap_or_default();
        let bare = floor::BARE.map(|kind| (kind, rounds_of(kind)));
        let chosen = bare.into_iter().min_by(|(_, one), (_, two)| quickest(one).total_cmp(&quickest(two)));
        let (floor_kind, rounds) = chosen.unwrap_or_default();
        let with_pit = Spread::of(rounds_of(floor::WITH_PIT).iter().map(|round| each(round.wall_us)));
        let best = rounds.iter().min_by(|one, two| one.wall_us.total_cmp(&two.wall_us));
        Self {
            count: row.count,
            rounds: row.forkd.len(),
            wall: Spread::of(row.forkd.iter().map(|round| each(round.wall_us))),
            started: Spread::of(row.forkd.iter().map(|round| each(round.started_us))),
            cpu: Spread::of(row.forkd.iter().map(|round| each(round.cpu_us))),
            floor_kind,
            floor_wall: Spread::of(rounds.iter().map(|round| each(round.wall_us))),
            floor_with_pit: with_pit,
            floor_cpu: Spread::of(rounds.iter().map(|round| each(round.cpu_us))),
            private_kib: Spread::of(row.memory.iter().map(crate::process::Memory::private_kib)),
            proportional_kib: Spread::of(row.memory.iter().map(|memory| memory.proportional_kib)),
            stages: row.stages.clone(),
            floor_stages: best.map(|round| round.stages_us.clone()).unwrap_or_default(),
        }
    }

    fn json(&self) -> Value {
        json!({
            "count": self.count,
            "rounds": self.rounds,
            "per_vm_ms": self.wall.json(),
            "per_vm_started_ms": self.started.json(),
            "per_vm_cpu_ms": self.cpu.json(),
            "floor": {
                "first": self.floor_kind,
                "per_vm_ms": self.floor_wall.json(),
                "per_vm_cpu_ms": self.floor_cpu.json(),
                "per_vm_ms_with_pit": self.floor_with_pit.json(),
            },
            "times_the_floor": self.wall.over(self.floor_wall).json(),
            "times_the_floor_with_pit": self.wall.over(self.floor_with_pit).json(),
            "times_the_floor_cpu": self.cpu.over(self.floor_cpu).json(),
            "private_kib": self.private_kib.json(),
            "proportional_kib": self.proportional_kib.json(),
            "stages_us": self.stages,
            "floor_stages_us": self.stages.as_ref().map(|_| &self.floor_stages),
        })
    }
}

fn goals(rows: &[Summary]) -> Value {
    let row = |count: usize| rows.iter().find(|row| row.count == count);
    let (hundred, thousand) = (row(100), row(1000));
    // Of a noisy machine's rounds the middle one says most; the luckiest of each side need not have had the same luck.
    let goal = |found: Option<f64>, limit: f64| {
        found.map_or(Value::Null, |found| json!({"found": rounded(found), "limit": limit, "met": found <= limit}))
    };
    let memory = rows.iter().map(|row| row.private_kib.median).max_by(f64::total_cmp);
    json!({
        "100_over_floor": goal(hundred.map(|row| row.wall.over(row.floor_wall).median), FLOOR_GOAL),
        "100_over_floor_with_pit": goal(hundred.map(|row| row.wall.over(row.floor_with_pit).median), FLOOR_GOAL),
        "1000_over_100":
            goal(hundred.zip(thousand).map(|(hundred, all)| all.wall.over(hundred.wall).median), GROWTH_GOAL),
        "private_kib": goal(memory, MEMORY_GOAL_KIB),
    })
}

fn table(rows: &[Summary]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    writeln!(
        text,
        "\n  ms per VM      forkd           floor     with PIT  times floor  with PIT     CPU time     private"
    )?;
    writeln!(text, "     n        min  median     min  median     min     min  median    min    ours   floor     KiB")?;
    for row in rows {
        let times = row.wall.over(row.floor_wall);
        writeln!(
            text,
            "{:>6}   {:>8.3}{:>8.3}{:>8.3}{:>8.3}{:>8.3}{:>8.2}{:>8.2}{:>7.2}{:>8.3}{:>8.3}{:>8.0}",
            row.count,
            row.wall.min,
            row.wall.median,
            row.floor_wall.min,
            row.floor_wall.median,
            row.floor_with_pit.min,
            times.min,
            times.median,
            row.wall.over(row.floor_with_pit).min,
            row.cpu.min,
            row.floor_cpu.min,
            row.private_kib.median,
        )?;
    }
    for row in rows {
        let Some(stages) = &row.stages else { continue };
        writeln!(text, "\nwhere the time goes, us, mean of {} at once        forkd     floor", row.count)?;
        for stage in STAGES {
            let of =
                |stages: &BTreeMap<String, f64>| stages.get(stage).map_or(String::from("-"), |us| format!("{us:.0}"));
            writeln!(text, "  {stage:<46}{:>10}{:>10}", of(stages), of(&row.floor_stages))?;
        }
        let sum = |stages: &BTreeMap<String, f64>| stages.values().sum::<f64>();
        writeln!(text, "  {:<46}{:>10.0}{:>10.0}", "all", sum(stages), sum(&row.floor_stages))?;
    }
    Ok(text)
}
