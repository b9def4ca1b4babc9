//! The system around the tests, and what VMs could leave behind in it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::host::Host;

/// What VMs may leave: processes, VM directories, taps. Compared before and after.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Traces {
    vmms: BTreeSet<u32>,
    dirs: BTreeSet<OsString>,
    taps: BTreeSet<OsString>,
}

impl Traces {
    /// What is there now.
    pub(crate) fn now(host: &Host) -> Result<Self> {
        let taps = names(Path::new("/sys/class/net"))
            .into_iter()
            .filter(|name| name.to_string_lossy().starts_with("forkd-tap"))
            .collect();
        Ok(Self { vmms: vmms(), dirs: names(&host.dirs.run.join("vms")), taps })
    }

    /// What is there now and was not at `self`. Other tests come and go meanwhile, so only what `owner` made counts.
    fn new_since(&self, host: &Host) -> Result<(BTreeSet<u32>, BTreeSet<OsString>, BTreeSet<OsString>)> {
        let now = Self::now(host)?;
        Ok((&now.vmms - &self.vmms, &now.dirs - &self.dirs, &now.taps - &self.taps))
    }
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

/// Nothing is left of any VM once the shared one is gone.
pub(crate) fn nothing_left(before: &Traces, host: &Host) -> Result<()> {
    let (vmms, dirs, taps) = before.new_since(host)?;
    ensure!(vmms.is_empty() && dirs.is_empty() && taps.is_empty(), "left behind: {vmms:?} {dirs:?} {taps:?}");
    Ok(())
}
