//! What came of it, for a person and for programs.

use std::time::Duration;

use api::{Forked, SnapshotInfo};
use engine::place::Place;
use serde_json::{Value, json};

use super::TAG;
use super::question::{Inside, Question};
use crate::table::{Column, table};

/// The snapshot.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) info: SnapshotInfo,
    /// How long it took until there was something to boot; nothing when the snapshot was there already.
    pub(super) prepared: Option<Duration>,
}

/// Everything.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) place: Place,
    pub(super) made: Made,
    /// The snapshot is not removed at the end.
    pub(super) stays: bool,
    pub(super) question: Question,
    pub(super) children: Forked,
    /// In the order of the children.
    pub(super) answers: Vec<Result<String, String>>,
    /// How long all of them took to answer.
    pub(super) asked_for: Duration,
    pub(super) inside: Option<Inside>,
}

impl Report {
    pub(super) fn right(&self) -> usize {
        self.answers.iter().filter(|answer| self.is_right(answer)).count()
    }

    fn is_right(&self, answer: &Result<String, String>) -> bool {
        answer.as_ref().is_ok_and(|answer| answer == self.question.answer)
    }

    pub(super) fn text(&self) -> String {
        let count = self.children.sandboxes.len();
        let inside = self.inside.as_ref().map(|inside| {
            let Inside { kernel, vcpus, up_secs } = inside;
            format!("  inside the first of them: {kernel}, {vcpus} vCPU, up {up_secs} s\n\n")
        });
        let times = self.times().into_iter().map(|(name, ms, words)| format!("  {name:<20}{ms:>10.1} ms {words}"));
        let times: Vec<_> = times.map(|line| line.trim_end().to_owned()).collect();
        format!(
            "{}{}\n\n  {} of {count} answered right\n\n{}\n\n{}",
            inside.unwrap_or_default(),
            indented(&self.table()),
            self.right(),
            times.join("\n"),
            if self.stays { next(self.question.text) } else { gone() },
        )
    }

    fn table(&self) -> String {
        let columns = [
            Column::Left("SANDBOX"),
            Column::Right("PID"),
            Column::Right("READY MS"),
            Column::Right("PRIVATE KiB"),
            Column::Left(self.question.text),
        ];
        let dash = || "-".to_owned();
        let rows = self.children.sandboxes.iter().zip(&self.answers).map(|(child, answer)| {
            let memory = child.sandbox.memory;
            [
                child.sandbox.id.clone(),
                child.sandbox.pid.map_or_else(dash, |pid| pid.to_string()),
                format!("{:.1}", millis(child.ready_us)),
                memory.map_or_else(dash, |memory| (memory.private_kib + memory.tables_kib).to_string()),
                match answer {
                    Ok(answer) => answer.clone(),
                    Err(error) => format!("no answer: {error}"),
                },
            ]
        });
        table(columns, &rows.collect::<Vec<_>>())
    }

    /// Each stage, in milliseconds, and what that is.
    fn times(&self) -> Vec<(&'static str, f64, &'static str)> {
        let timings = self.children.timings;
        let mut times = Vec::new();
        if let (Some(prepared), Some(took)) = (self.made.prepared, self.made.info.took) {
            times.extend([
                ("prepared", prepared.as_secs_f64() * 1e3, "until image and kernel were where VMs run"),
                ("booted", took.boot_ms, ""),
                ("warmed up", took.warm_ms, ""),
                ("written", took.write_ms, ""),
            ]);
        }
        times.extend([
            ("processes forked", millis(timings.forked_us), "after the request"),
            ("all vCPUs running", millis(timings.started_us), "after the request"),
            ("all ready", millis(timings.ready_us), "after the request"),
            ("all have answered", self.asked_for.as_secs_f64() * 1e3, "after they were asked"),
        ]);
        times
    }

    pub(super) fn json(&self) -> Value {
        let child = |(child, answer): (&api::ForkedSandbox, &Result<String, String>)| {
            json!({
                "id": child.sandbox.id,
                "pid": child.sandbox.pid,
                "ready_us": child.ready_us,
                "memory": child.sandbox.memory,
                "answer": answer.as_ref().ok(),
                "error": answer.as_ref().err(),
            })
        };
        let place = match &self.place {
            Place::Local => json!({ "is": "local" }),
            Place::Machine { why } => json!({ "is": "machine", "why": why }),
        };
        let times: serde_json::Map<_, _> = self
            .times()
            .into_iter()
            .map(|(name, ms, _)| (format!("{}_ms", name.replace(' ', "_")), json!(ms)))
            .collect();
        json!({
            "place": place,
            "snapshot": { "tag": TAG, "recipe": self.made.info.recipe, "was_there": self.made.prepared.is_none() },
            "inside": self.inside.as_ref().map(|inside| json!({ "kernel": inside.kernel, "vcpus": inside.vcpus })),
            "question": self.question.text,
            "answer": self.question.answer,
            "children": self.children.sandboxes.iter().zip(&self.answers).map(child).collect::<Vec<_>>(),
            "n": self.children.sandboxes.len(),
            "right": self.right(),
            "times": times,
        })
    }
}

/// Three commands to try next, and how to be rid of it.
fn next(question: &str) -> String {
    let run = if question.starts_with("echo") { "sh" } else { "python3" };
    format!(
        "The forks are ended; the snapshot stays. Try next:\n\n  \
         forkd run --tag {TAG} -t -- {run}           one fork with a terminal\n  \
         forkd fork --tag {TAG} -n 100            a hundred that stay; forkd ls lists them, forkd kill --all ends them\n  \
         forkd recipe init mine                     a recipe of your own\n\n\
         forkd rmi {TAG} removes the snapshot."
    )
}

/// What can be tried when nothing is left.
fn gone() -> String {
    "Nothing of it stays but the cache, so this is quicker the next time. Try next:\n\n  \
     forkd quickstart                           the same, and the snapshot stays to be forked\n  \
     forkd recipe list                          what else comes with forkd\n  \
     forkd recipe init mine                     a recipe of your own"
        .into()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[expect(clippy::cast_precision_loss, reason = "a time that is shown with one digit")]
fn millis(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use api::ForkTimings;

    use super::*;

    fn report(answers: &[Result<&str, &str>]) -> Report {
        let info = json!({
            "tag": TAG, "dir": "/d", "created_at_unix": 1, "status": "ready", "bootable": true,
            "recipe": "python-numpy", "interpreter": "python3",
            "took": { "boot_ms": 1500.0, "warm_ms": 2000.0, "write_ms": 300.5 },
        });
        let info: SnapshotInfo = serde_json::from_value(info).unwrap();
        let sandbox = |n: usize| {
            let value = json!({
                "id": format!("sb-{n}"), "snapshot_tag": TAG, "netns": null, "guest_addr": "", "created_at_unix": 1,
                "pid": 100, "memory_limit_mib": null, "has_branched": false, "last_branch_memory_path": null,
                "branch_count": 0, "status": "running", "labels": {}, "expires_at_unix": null, "reason": null,
                "hostname": "", "memory": null, "setup_us": 7, "renew_us": 9, "ready_us": 12_345,
            });
            serde_json::from_value(value).unwrap()
        };
        let timings = ForkTimings { forked_us: 1000, started_us: 2000, ready_us: 13_000, ..ForkTimings::default() };
        Report {
            place: Place::Local,
            question: Question::about(&info),
            made: Made { info, prepared: Some(Duration::from_secs(3)) },
            stays: true,
            children: Forked { sandboxes: (0..answers.len()).map(sandbox).collect(), failures: Vec::new(), timings },
            answers: answers.iter().map(|answer| answer.map(Into::into).map_err(Into::into)).collect(),
            asked_for: Duration::from_millis(40),
            inside: Some(Inside { kernel: "Linux 6.1".into(), vcpus: 1, up_secs: 4.5 }),
        }
    }

    const RIGHT: &str = "[0.0, 0.0, 0.0, 0.0, 0.0]";

    #[test]
    fn a_person_sees_the_table_the_times_and_what_to_try() {
        let text = report(&[Ok(RIGHT), Err("it died"), Ok("7")]).text();
        for part in [
            "inside the first of them: Linux 6.1, 1 vCPU, up 4.5 s",
            "sb-0     100      12.3            -  [0.0, 0.0, 0.0, 0.0, 0.0]",
            "no answer: it died",
            "1 of 3 answered right",
            "prepared                3000.0 ms until",
            "all ready                 13.0 ms after the request",
            "forkd rmi quickstart",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
        assert_eq!(
            text.lines().filter(|line| line.trim_start().starts_with("forkd r") && line.contains("  ")).count(),
            2
        );
    }

    #[test]
    fn what_is_removed_is_not_advertised() {
        let text = Report { stays: false, ..report(&[Ok(RIGHT)]) }.text();
        assert!(!text.contains(&format!("--tag {TAG}")) && !text.contains("rmi"), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("  forkd ")).count(), 3, "{text}");
    }

    #[test]
    fn programs_get_all_of_it() {
        let value = report(&[Ok(RIGHT), Ok(RIGHT)]).json();
        assert_eq!((value["right"].as_u64(), value["n"].as_u64()), (Some(2), Some(2)));
        assert_eq!(value["times"]["warmed_up_ms"], 2000.0);
        assert_eq!((&value["place"]["is"], &value["inside"]["vcpus"]), (&json!("local"), &json!(1)));
        assert_eq!(value["snapshot"]["was_there"], false);
    }

    #[test]
    fn each_snapshot_is_asked_what_it_can_answer() {
        let mut info = report(&[]).made.info;
        assert_eq!(Question::about(&info).text, "numpy.zeros(5).tolist()");
        info.recipe = Some("mine".into());
        assert_eq!(Question::about(&info).answer, "285");
        info.interpreter = None;
        assert_eq!(Question::about(&info).answer, "42");
    }
}
