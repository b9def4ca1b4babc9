//! The system around the tests, and what VMs could leave behind in it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// What one VMM would leave if nobody tidied up. Other tests' VMs come and go meanwhile, so it is looked at by name.
#[derive(Debug)]
pub(crate) struct Traces {
    dir: PathBuf,
    /// The tap's name and number; names are used again.
    tap: Option<(String, String)>,
}

impl Traces {
    /// Of a VMM that runs.
    pub(crate) fn of(vmm: u32) -> Result<Self> {
        let process = Path::new("/proc").join(vmm.to_string());
        let log = fs::read_link(process.join("fd/2"))?;
        let infos = process.join("fdinfo");
        let info = |name: OsString| fs::read_to_string(infos.join(name)).ok();
        let tap = names(&infos).into_iter().filter_map(info).find_map(|info| {
            let name = info.lines().find_map(|line| line.strip_prefix("iff:"))?.trim().to_owned();
            Some((name.clone(), interface_number(&name)?))
        });
        Ok(Self { dir: log.parent().context("a log in no directory")?.into(), tap })
    }

    /// Whether it had a network card.
    pub(crate) const fn has_tap(&self) -> bool {
        self.tap.is_some()
    }

    /// Whether all of it is gone.
    pub(crate) fn are_gone(&self) -> bool {
        let tap = self.tap.as_ref().is_some_and(|(name, number)| interface_number(name).as_ref() == Some(number));
        !self.dir.exists() && !tap
    }
}

fn interface_number(name: &str) -> Option<String> {
    fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()
}

/// What is in a directory; nothing when there is none.
pub(crate) fn names(dir: &Path) -> BTreeSet<OsString> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

/// All processes of VMMs.
fn vmms() -> BTreeSet<u32> {
    let all = names(Path::new("/proc")).into_iter().filter_map(|name| name.to_str()?.parse().ok());
    all.filter(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "forkd-vmm\n")).collect()
}

/// The processes of VMMs that log somewhere below a directory, as the VMs and templates of one `run` do.
pub(crate) fn vmms_in(dir: &Path) -> BTreeSet<u32> {
    let log = |pid: &u32| fs::read_link(format!("/proc/{pid}/fd/2"));
    vmms().into_iter().filter(|pid| log(pid).is_ok_and(|log| log.starts_with(dir))).collect()
}

/// The VMM processes that `parent` started.
pub(crate) fn vmms_of(parent: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .filter(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "forkd-vmm\n"))
        .collect()
}

/// Waits until `done` says so; a bounded wait for something outside of this process.
pub(crate) fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let until = Instant::now() + limit;
    while !done() {
        if Instant::now() > until {
            bail!("{what} did not happen within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
