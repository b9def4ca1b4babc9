//! Where VMs run, for benchmarks of real Linux guests: this host's KVM, or the emulated host.
//!
//! This very program measures there, started with words that make it do just that, so that no guest pays for a process or
//! a connection from out here. The report says where: numbers of the emulated host are never numbers of hardware.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use engine::Program;
use engine::place::{Place, place};
use machine::{Machine, Push};
use serde::de::DeserializeOwned;
use session::ExecRequest;
use types::progress::Silent;
use types::{Dirs, Tag};

use crate::forkd::binary;

/// Where the forkd in the emulated host keeps its things.
const HOME_INSIDE: &str = "/var/lib/forkd";
/// More than the largest report has.
const MAX_REPORT: usize = 16 << 20;

/// This host, or the emulated one, which then runs.
pub(crate) struct Site {
    machine: Option<Machine>,
}

impl Site {
    pub(crate) fn find() -> Result<Self> {
        let dirs = Dirs::from_env()?;
        let machine = match place(&dirs)? {
            Place::Local => None,
            Place::Machine { .. } => {
                Some(machine::start(&dirs, &Program::Agent.find()?, &Silent).context("the emulated host")?)
            }
        };
        Ok(Self { machine })
    }

    pub(crate) const fn is_emulated(&self) -> bool {
        self.machine.is_some()
    }

    /// What a report says of its numbers.
    pub(crate) const fn kvm(&self) -> &'static str {
        if self.is_emulated() { "emulated" } else { "hardware" }
    }

    /// Makes a snapshot for as long as the work takes.
    pub(crate) fn with_snapshot<T>(&self, tag: &Tag, words: &[&str], work: impl FnOnce() -> Result<T>) -> Result<T> {
        forkd(&[&["snapshot", "--force", "--quiet", "--tag", tag.as_str()], words].concat())?;
        let done = work();
        let removed = forkd(&["rmi", tag.as_str()]);
        let done = done?;
        removed.map(|()| done)
    }

    /// What this program prints when it is started there with these words.
    pub(crate) fn ask<T: DeserializeOwned>(&self, words: &[&str]) -> Result<T> {
        let report = match &self.machine {
            Some(machine) => ask_inside(machine, words)?,
            None => ask_here(words)?,
        };
        serde_json::from_slice(&report).with_context(|| format!("the report of {}", words.join(" ")))
    }

    /// What a file of the kernel's says there.
    pub(crate) fn read(&self, path: &str) -> Result<String> {
        let Some(machine) = &self.machine else { return Ok(std::fs::read_to_string(path)?) };
        let request = ExecRequest { argv: vec!["cat".into(), path.into()], ..ExecRequest::default() };
        let output = machine.output(&request, &[], MAX_REPORT)?;
        ensure!(output.status.shell_code() == 0, "{path} cannot be read in the emulated host");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn forkd(words: &[&str]) -> Result<()> {
    // What it prints is not the report.
    let status = Command::new(binary()?).args(words).stdout(std::io::stderr()).status()?;
    ensure!(status.success(), "forkd {} ended with {status}", words.join(" "));
    Ok(())
}

fn ask_here(words: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(std::env::current_exe()?).args(words).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{} ended with {}", words.join(" "), output.status);
    Ok(output.stdout)
}

/// Brings this program into the emulated host and runs it there.
fn ask_inside(machine: &Machine, words: &[&str]) -> Result<Vec<u8>> {
    let files = [std::env::current_exe()?, Program::Vmm.find()?];
    let push = |local: &PathBuf| -> Result<Push> {
        let name = local.file_name().and_then(|name| name.to_str()).context("a program without a name")?;
        Ok(Push { local: local.clone(), remote_name: name.into() })
    };
    let pushes = files.iter().map(push).collect::<Result<Vec<_>>>()?;
    let [bench, vmm] = &machine.push(&pushes, &Silent).context("pushing into the emulated host")?[..] else {
        bail!("the emulated host took another number of files than it was given")
    };
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let variables = [("FORKD_HOME", HOME_INSIDE.into()), ("FORKD_PLACE", "local".into()), ("FORKD_VMM", text(vmm))];
    let request = ExecRequest {
        argv: std::iter::once(text(bench)).chain(words.iter().map(|word| (*word).to_owned())).collect(),
        env: variables.map(|(name, value)| (name.to_owned(), value)).into(),
        ..ExecRequest::default()
    };
    let output = machine.output(&request, &[], MAX_REPORT)?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.shell_code() == 0, "inside the emulated host: {}", complaints.trim());
    Ok(output.stdout)
}
