//! What every fork is asked, and what it has to answer.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use api::{EvalRequest, EvalResult, ExecRequest, ExecResult, SnapshotInfo};
use client::{Client, path};

/// How many are asked at once.
const ASKERS: usize = 8;
/// An emulated host with all its forks awake is slow.
const PATIENCE_SECS: f64 = 120.0;

/// Something to calculate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// As a person reads it.
    pub(super) text: &'static str,
    /// What is right.
    pub(super) answer: &'static str,
    way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In the warm interpreter.
    Eval,
    /// By a shell.
    Shell,
}

impl Question {
    /// What a snapshot can be asked.
    pub(super) fn about(snapshot: &SnapshotInfo) -> Self {
        let eval = |text, answer| Self { text, answer, way: Way::Eval };
        match (snapshot.recipe.as_deref(), snapshot.interpreter.as_deref()) {
            (Some("python-numpy"), Some(_)) => eval("numpy.zeros(5).tolist()", "[0.0, 0.0, 0.0, 0.0, 0.0]"),
            (_, Some("python3")) => eval("sum(n * n for n in range(10))", "285"),
            _ => Self { text: "echo $((6 * 7))", answer: "42", way: Way::Shell },
        }
    }

    /// Asks all of them, a few at a time; what went wrong for one that does not answer.
    pub(super) fn ask_all(&self, client: &Client, ids: &[String]) -> Vec<Result<String, String>> {
        let next = AtomicUsize::new(0);
        let answers = Mutex::new(vec![Err(String::from("it was not asked")); ids.len()]);
        thread::scope(|scope| {
            for _ in 0..ASKERS.min(ids.len()) {
                scope.spawn(|| {
                    while let Some((index, id)) = ids.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                        let answer = self.ask(client, id);
                        answers.lock().expect("nobody panics")[index] = answer;
                    }
                });
            }
        });
        answers.into_inner().expect("nobody panics")
    }

    fn ask(&self, client: &Client, id: &str) -> Result<String, String> {
        match self.way {
            Way::Shell => shell(client, id, self.text),
            Way::Eval => {
                let request = EvalRequest { code: self.text.into(), timeout_secs: Some(PATIENCE_SECS) };
                let evaluated: Result<EvalResult, _> = client.post(&path(&["sandboxes", id, "eval"], &[]), &request);
                let evaluated = evaluated.map_err(|error| error.to_string())?;
                evaluated.result.ok_or_else(|| evaluated.error.unwrap_or_else(|| "there is no result".into()))
            }
        }
    }
}

/// What a line for the shell of a sandbox writes.
fn shell(client: &Client, id: &str, line: &str) -> Result<String, String> {
    let args = ["sh", "-c", line].map(String::from).to_vec();
    let request = ExecRequest { args, timeout_secs: Some(PATIENCE_SECS), ..ExecRequest::default() };
    let ran: Result<ExecResult, _> = client.post(&path(&["sandboxes", id, "exec"], &[]), &request);
    let ran = ran.map_err(|error| error.to_string())?;
    if ran.exit_code == 0 { Ok(ran.stdout.trim().into()) } else { Err(ran.stderr.trim().into()) }
}

/// The kernel, the number of vCPUs and for how long it believes to be up: a VM, seen from inside.
pub(super) fn inside(client: &Client, id: &str) -> Option<Inside> {
    let said = shell(client, id, "uname -sr; nproc; cut -d' ' -f1 /proc/uptime").ok()?;
    let mut lines = said.lines();
    let (kernel, vcpus, up) = (lines.next()?, lines.next()?, lines.next()?);
    Some(Inside { kernel: kernel.into(), vcpus: vcpus.parse().ok()?, up_secs: up.parse().ok()? })
}

/// What a fork says of itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Inside {
    pub(super) kernel: String,
    pub(super) vcpus: u32,
    pub(super) up_secs: f64,
}
