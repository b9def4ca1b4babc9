//! What came of a fork, for a person, for the scripts that look for these lines, and for programs.

use api::{Forked, ForkedSandbox};
use serde_json::{Value, json};
use types::Tag;

use crate::table::{Column, table};

/// A fork's results.
#[derive(Debug)]
pub(super) struct Report {
    tag: Tag,
    asked: u32,
    forked: Forked,
}

impl Report {
    pub(super) fn new(tag: &Tag, asked: u32, forked: &Forked) -> Self {
        Self { tag: tag.clone(), asked, forked: forked.clone() }
    }

    pub(super) fn failed(&self) -> usize {
        self.forked.failures.len()
    }

    /// How many there are.
    pub(super) fn ready(&self) -> usize {
        self.forked.sandboxes.len()
    }

    /// Says on standard error why some failed.
    pub(super) fn tell_failures(&self) {
        for failure in &self.forked.failures {
            eprintln!("forkd: a sandbox failed: {failure}");
        }
    }

    /// The first, second and fourth line are looked for by scripts, which take their fields by number.
    pub(super) fn text(&self) -> String {
        let (asked, timings) = (self.asked, self.forked.timings);
        let [p50, p99] = self.percentiles();
        let columns = [
            Column::Left("ID"),
            Column::Right("PID"),
            Column::Right("READY MS"),
            Column::Right("PRIVATE KiB"),
            Column::Right("SHARED KiB"),
        ];
        let dash = || "-".to_owned();
        let rows = self.forked.sandboxes.iter().map(|row| {
            [
                row.sandbox.id.clone(),
                row.sandbox.pid.map_or_else(dash, |pid| pid.to_string()),
                millis(row.ready_us),
                row.sandbox.memory.map_or_else(dash, |memory| (memory.private_kib + memory.tables_kib).to_string()),
                row.sandbox.memory.map_or_else(dash, |memory| memory.shared_kib.to_string()),
            ]
        });
        format!(
            "✓ all sockets up in {} ms\n\
             ✓ {asked} restores fired in parallel in {} ms\n\
             ✓ {} / {asked} children ready: p50 {} ms, p99 {} ms\n\
             ✓ total wall-clock: {} ms\n\n{}",
            whole_millis(timings.started_us),
            whole_millis(timings.forked_us),
            self.forked.sandboxes.len(),
            millis(p50),
            millis(p99),
            whole_millis(timings.ready_us),
            table(columns, &rows.collect::<Vec<_>>()),
        )
    }

    pub(super) fn json(&self) -> Value {
        let [p50, p99] = self.percentiles();
        let child = |row: &ForkedSandbox| {
            json!({
                "id": row.sandbox.id,
                "pid": row.sandbox.pid,
                "setup_us": row.setup_us,
                "renew_us": row.renew_us,
                "ready_us": row.ready_us,
                "memory": row.sandbox.memory,
            })
        };
        json!({
            "tag": self.tag,
            "n": self.asked,
            "children": self.forked.sandboxes.iter().map(child).collect::<Vec<_>>(),
            "failures": self.forked.failures,
            "ready_p50_us": p50,
            "ready_p99_us": p99,
            "template_us": self.forked.timings.template_us,
            "directories_us": self.forked.timings.directories_us,
            "forked_us": self.forked.timings.forked_us,
            "started_us": self.forked.timings.started_us,
            "ready_us": self.forked.timings.ready_us,
        })
    }

    /// By the nearest rank.
    fn percentiles(&self) -> [u64; 2] {
        let mut times: Vec<u64> = self.forked.sandboxes.iter().map(|row| row.ready_us).collect();
        times.sort_unstable();
        let rank = |percent: usize| times.get((times.len() * percent).div_ceil(100).saturating_sub(1));
        [50, 99].map(|percent| rank(percent).copied().unwrap_or_default())
    }
}

/// Another line that scripts look for.
pub(super) fn alive(alive: usize, asked: u32) -> String {
    format!("✓ {alive} / {asked} children alive")
}

/// One digit after the point.
fn millis(micros: u64) -> String {
    format!("{}.{}", micros / 1000, micros % 1000 / 100)
}

fn whole_millis(micros: u64) -> u64 {
    micros.div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use api::ForkTimings;

    use super::*;

    fn report() -> Report {
        let sandbox = |n: u64| {
            let memory = (n != 2).then_some(json!({ "private_kib": 300, "shared_kib": 5000, "tables_kib": 12 }));
            let value = json!({
                "id": format!("sb-{n}"), "snapshot_tag": "t", "netns": null, "guest_addr": "", "created_at_unix": 1,
                "pid": 100, "memory_limit_mib": null, "has_branched": false, "last_branch_memory_path": null,
                "branch_count": 0, "status": "running", "labels": {}, "expires_at_unix": null, "reason": null,
                "hostname": "", "memory": memory, "setup_us": 7, "renew_us": 9, "ready_us": n * 1000,
            });
            serde_json::from_value::<ForkedSandbox>(value).unwrap()
        };
        let timings =
            ForkTimings { template_us: 1, directories_us: 2, forked_us: 1800, started_us: 2500, ready_us: 13_000 };
        let forked = Forked { sandboxes: vec![sandbox(2), sandbox(13)], failures: vec!["it died".into()], timings };
        Report { tag: "t".parse().unwrap(), asked: 3, forked }
    }

    #[test]
    fn the_lines_that_scripts_look_for_are_there() {
        let expected = "\
✓ all sockets up in 3 ms
✓ 3 restores fired in parallel in 2 ms
✓ 2 / 3 children ready: p50 2.0 ms, p99 13.0 ms
✓ total wall-clock: 13 ms

ID     PID  READY MS  PRIVATE KiB  SHARED KiB
sb-2   100       2.0            -           -
sb-13  100      13.0          312        5000";
        assert_eq!(report().text(), expected);
        let total = report().text().lines().find(|line| line.contains("total")).map(str::to_owned);
        assert_eq!(total.unwrap().split_whitespace().nth(3), Some("13"), "the fourth field");
    }

    #[test]
    fn programs_get_all_of_it() {
        let value = report().json();
        assert_eq!((value["n"].as_u64(), value["children"].as_array().map(Vec::len)), (Some(3), Some(2)));
        assert_eq!(value["failures"][0], "it died");
        assert_eq!(value["children"][1]["memory"]["private_kib"], 300);
        assert_eq!((value["ready_p50_us"].as_u64(), value["ready_p99_us"].as_u64()), (Some(2000), Some(13_000)));
    }

    #[test]
    fn nobody_ready_has_no_percentiles() {
        let none = Report { forked: Forked::default(), ..report() };
        assert_eq!(none.percentiles(), [0, 0]);
    }
}
