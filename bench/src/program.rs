//! The C programs beside this crate: what the kernel alone charges. Compiled here, and asked for a round at a time.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use types::GuestMemorySize;

/// A running program, ended when dropped.
#[derive(Debug)]
pub(crate) struct Program {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Program {
    /// Compiles it in `dir` and starts it for VMs of this size.
    pub(crate) fn start(dir: &Path, name: &str, source: &str, memory: GuestMemorySize) -> Result<Self> {
        let (file, program) = (dir.join(format!("{name}.c")), dir.join(name));
        std::fs::write(&file, source)?;
        let compiled = Command::new("cc").args(["-O2", "-Wall", "-pthread", "-o"]).args([&program, &file]).status();
        ensure!(
            compiled.with_context(|| format!("cc is needed to compile {name}.c"))?.success(),
            "{name}.c does not compile"
        );
        let mut process = Command::new(program)
            .arg((memory.bytes() >> 20).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(requests), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("{name} has no pipes")
        };
        Ok(Self { process, requests, answers: BufReader::new(answers) })
    }

    /// A line for a line.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, request: &str) -> Result<T> {
        writeln!(self.requests, "{request}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        serde_json::from_str(&answer).with_context(|| format!("asked for {request:?} it said {answer:?}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only for a process that is gone already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
