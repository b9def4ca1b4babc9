//! The floor: `floor.c`, compiled here and asked for a round at a time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use types::GuestMemorySize;

const SOURCE: &str = include_str!("../../floor.c");

/// The least there is. Kernels differ in which of two calls they are quicker with first; the quicker one counts.
pub(crate) const BARE: [&str; 2] = ["slot", "chips"];
/// The same with a PIT, the timer that every PC has and forkd's VMs do without.
pub(crate) const WITH_PIT: &str = "pit";

/// What a round took, in microseconds.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Round {
    /// Until the last VM's first exit.
    pub(crate) wall_us: f64,
    /// CPU time of everybody together.
    pub(crate) cpu_us: f64,
    /// The mean time of each stage.
    pub(crate) stages_us: BTreeMap<String, f64>,
}

/// The running program.
#[derive(Debug)]
pub(crate) struct Floor {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Floor {
    /// Compiles it in `dir` and starts it.
    pub(crate) fn start(dir: &Path, memory: GuestMemorySize) -> Result<Self> {
        let (source, program) = (dir.join("floor.c"), dir.join("floor"));
        std::fs::write(&source, SOURCE)?;
        let compiled = Command::new("cc").args(["-O2", "-Wall", "-o"]).args([&program, &source]).status();
        ensure!(compiled.context("cc is needed to compile the floor")?.success(), "floor.c does not compile");
        let mut process = Command::new(program)
            .arg((memory.bytes() >> 20).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(requests), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("the floor has no pipes")
        };
        Ok(Self { process, requests, answers: BufReader::new(answers) })
    }

    /// Runs a round of `count` VMs.
    pub(crate) fn round(&mut self, count: usize, kind: &str) -> Result<Round> {
        writeln!(self.requests, "{count} {kind}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        serde_json::from_str(&answer).with_context(|| format!("the floor said {answer:?}"))
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // Both fail only for a process that is gone already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
