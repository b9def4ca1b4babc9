//! What several sandboxes have of one thing none of them can change.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, ensure};
use engine::{Lifetime, stop_template};
use types::Tag;

use super::Parent;
use super::children::{Children, Run};
use crate::Test;
use crate::branch::{Taken, take};
use crate::host::Host;

pub(crate) const NATIVE_TESTS: &[Test] = &[("fork::nobody_writes_what_others_read", nobody_writes_what_others_read)];

/// The files that a process has open, by device and inode.
struct Open {
    pid: i32,
    all: BTreeSet<(u64, u64)>,
    writable: BTreeSet<(u64, u64)>,
}

impl Open {
    fn of(pid: i32) -> Result<Self> {
        let mut open = Self { pid, all: BTreeSet::new(), writable: BTreeSet::new() };
        for fd in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let (path, name) = fd.map(|fd| (fd.path(), fd.file_name()))?;
            // Closed meanwhile, as the loop does with connections.
            let Ok(found) = fs::metadata(&path) else { continue };
            if !found.is_file() {
                continue;
            }
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", name.display()))?;
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).context("flags")?;
            let flags = u32::from_str_radix(flags.trim(), 8)?;
            let file = (found.dev(), found.ino());
            open.all.insert(file);
            // Not O_RDONLY.
            if flags & 0b11 != 0 {
                open.writable.insert(file);
            }
        }
        Ok(open)
    }
}

/// None of them can write to what another one has.
fn are_apart(pids: &[i32]) -> Result<()> {
    for pid in pids {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
        let files = limits.lines().find(|line| line.starts_with("Max file size")).context("a limit of files")?;
        ensure!(!files.contains("unlimited"), "process {pid} can fill the host's disks: {files}");
    }
    let all = pids.iter().map(|pid| Open::of(*pid)).collect::<Result<Vec<_>>>()?;
    for one in &all {
        ensure!(!one.writable.is_empty(), "process {} writes to no file at all, not even its top", one.pid);
        for other in all.iter().filter(|other| other.pid != one.pid) {
            let shared: Vec<_> = one.writable.intersection(&other.all).collect();
            ensure!(shared.is_empty(), "process {} can write to {shared:?} of process {}", one.pid, other.pid);
        }
    }
    Ok(())
}

/// Memory of several layers is one file for all children of a template, and what a sandbox had written when it was branched
/// is below the tops of all that come of it.
fn nobody_writes_what_others_read(host: &Host) -> Result<()> {
    let mut taken = Taken::new(&host.dirs);
    let children = Children::fork(host, Parent::Native, 1)?;
    children[0].run(&["remember", "0", "word"])?;
    children[0].run(&["write", "0", "word"])?;
    let tag: Tag = "e2e-shared".parse()?;
    let branch = take(&children[0], &tag, &host.dirs)?;
    let live = Children::fork_in(&host.dirs, &tag, 2, Lifetime::Connection)?;
    ensure!(live[0].run(&["read", "0"])? == "word" && live[1].run(&["recall", "0"])? == "word");
    live[0].run(&["write", "1", "mine"])?;
    let again: Tag = "e2e-shared-again".parse()?;
    drop(take(&live[0], &again, &host.dirs)?);
    live[0].run(&["write", "1", "mine, later"])?;
    children[0].run(&["write", "1", "its own"])?;
    are_apart(&[children.pids(), live.pids()].concat())?;
    drop(live);
    taken.keep(branch)?;
    stop_template(&tag, &host.dirs)?;
    let stored = Children::fork_in(&host.dirs, &tag, 2, Lifetime::Connection)?;
    ensure!(stored[0].run(&["recall", "0"])? == "word" && stored[1].run(&["read", "0"])? == "word");
    are_apart(&stored.pids())
}
