//! What the rounds come to: JSON on standard output, the same as a table on standard error.

use std::fmt::Write;

use anyhow::Result;
use serde_json::{Value, json};

use super::{RECIPE, Round, Row};
use crate::forkd::host;
use crate::site::Site;
use crate::spread::Spread;

/// Prints both.
pub(super) fn print(rounds: usize, site: &Site, rows: &[Row]) -> Result<()> {
    eprint!("{}", table(site.kvm(), rows)?);
    let report = json!({
        "bench": "branch",
        "guest": "linux",
        "kvm": site.kvm(),
        "emulated": site.is_emulated(),
        "recipe": RECIPE,
        "rounds": rounds,
        "host": host(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    });
    println!("{report:#}");
    Ok(())
}

fn row(row: &Row) -> Value {
    let mut json = json!({"memory_mib": row.case.memory.bytes() >> 20, "diverged_mib": row.case.diverged_mib});
    match &row.measured {
        Ok(rounds) => json["measured"] = measured(rounds),
        Err(why) => json["skipped"] = json!(why),
    }
    json
}

fn measured(rounds: &[Round]) -> Value {
    let spread = |of: fn(&Round) -> f64| Spread::of(rounds.iter().map(of)).json();
    json!({
        "pause_us": spread(|round| round.pause_us),
        "guest_gap_us": spread(|round| round.gap_us),
        "stall_before_us": spread(|round| round.stall_before_us),
        "stall_after_us": spread(|round| round.stall_after_us),
        "answered_us": spread(|round| round.answered_us),
        "written_bytes": rounds.iter().map(|round| round.bytes).max(),
        "durable_us": spread(|round| round.durable_us),
    })
}

fn table(kvm: &str, rows: &[Row]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    writeln!(text, "\non {kvm} KVM")?;
    writeln!(text, "       MiB   pause      longest stall, ms  grandchild  written   durable")?;
    writeln!(text, "memory wrote    ms   around  before    after    answered      MiB        ms")?;
    for row in rows {
        write!(text, "{:>6}{:>6}", row.case.memory.bytes() >> 20, row.case.diverged_mib)?;
        let Ok(rounds) = &row.measured else {
            writeln!(text, "    not measured")?;
            continue;
        };
        let ms = |of: fn(&Round) -> f64| Spread::of(rounds.iter().map(of)).median / 1e3;
        let kib = rounds.iter().map(|round| round.bytes).max().map_or(0, |bytes| bytes >> 10);
        writeln!(
            text,
            "{:>6.1}{:>9.1}{:>8.1}{:>9.1}{:>12.1}{:>9.1}{:>10.1}",
            ms(|round| round.pause_us),
            ms(|round| round.gap_us),
            ms(|round| round.stall_before_us),
            ms(|round| round.stall_after_us),
            ms(|round| round.answered_us),
            f64::from(u32::try_from(kib).unwrap_or(u32::MAX)) / 1024.0,
            ms(|round| round.durable_us),
        )?;
    }
    Ok(text)
}
