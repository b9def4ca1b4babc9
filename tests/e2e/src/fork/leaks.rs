//! Forking and killing leaves everything as it was. Alone in its process: whatever changes is a leak.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::{Lifetime, Limits, MemoryLimit};

use super::Parent;
use super::children::{Children, Run};
use super::limits::groups;
use super::own::Own;
use super::parents::WORD;
use crate::Test;
use crate::host::Host;
use crate::world::{names, vmms_in, wait_until};

/// To be run when nothing else runs.
pub(crate) const TESTS: &[Test] = &[("fork::leaks_nothing", leaks_nothing)];

/// How long the kernel may take to be done with what ended.
const LIMIT: Duration = Duration::from_secs(30);

/// A limit that nobody comes near.
const GENEROUS_MIB: u64 = 512;

/// All that a fork uses.
#[derive(Debug, PartialEq, Eq)]
struct Used {
    vmms: BTreeSet<u32>,
    files: BTreeSet<String>,
    sockets: Vec<String>,
    mounts: String,
    /// The children's control groups.
    groups: BTreeSet<OsString>,
    /// Descriptors of this process and of the template.
    descriptors: [usize; 2],
}

impl Used {
    fn now(own: &Own, template: u32) -> Result<Self> {
        let mut files = BTreeSet::new();
        for dir in [&own.dirs.run, &own.dirs.cache.join("tops")] {
            walk(dir, &mut files)?;
        }
        let run = own.dirs.run.to_string_lossy().into_owned();
        let unix = fs::read_to_string("/proc/net/unix")?;
        let mut sockets: Vec<String> =
            unix.lines().filter_map(|line| Some(line.split_once(&run)?.1.to_owned())).collect();
        sockets.sort();
        let descriptors = |pid: u32| names(Path::new(&format!("/proc/{pid}/fd"))).len();
        Ok(Self {
            vmms: vmms_in(Path::new("/")),
            files,
            sockets,
            mounts: fs::read_to_string("/proc/self/mountinfo")?,
            groups: groups(),
            descriptors: [std::process::id(), template].map(descriptors),
        })
    }
}

fn walk(dir: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        found.insert(entry.path().display().to_string());
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), found)?;
        }
    }
    Ok(())
}

fn leaks_nothing(host: &Host) -> Result<()> {
    let own = Own::new(host, Parent::Native)?;
    let template = own.template()?;
    // The first makes what stays: the directory of all directories and its lock.
    drop(own.fork(1)?);
    let before = Used::now(&own, template)?;
    let limited = Limits { memory: Some(MemoryLimit::try_from(GENEROUS_MIB)?), ..Limits::default() };
    let unlimited = Limits::default();
    for (lifetime, limits) in
        [(Lifetime::Connection, unlimited), (Lifetime::Detached, unlimited), (Lifetime::Detached, limited)]
    {
        let children = Children::fork_limited(&own.dirs, &own.tag, 8, lifetime, limits)?;
        for child in children.iter() {
            ensure!(child.word()? == WORD);
            child.run(&["write", "1", "word"])?;
        }
        drop(children);
        let mut now = Used::now(&own, template)?;
        let tidy = wait_until("a tidy host", LIMIT, || {
            Used::now(&own, template).is_ok_and(|used| {
                now = used;
                now == before
            })
        });
        tidy.with_context(|| format!("before: {before:?}\nafter: {now:?}"))?;
    }
    Ok(())
}
