//! What the kernel says of the processes of sandboxes: who they are, and what they have left.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use engine::{Lifetime, Removal, remove_snapshot};
use types::Tag;

use super::Parent;
use super::children::{Children, Py};
use super::own::Own;
use crate::Test;
use crate::branch::{one, take};
use crate::host::{Host, Sh};

pub(crate) const TESTS: &[Test] = &[
    ("fork::each_is_confined", each_is_confined),
    ("fork::a_stored_branch_has_children_of_their_own_user", a_stored_branch_has_children_of_their_own_user),
];

/// Which users VMs run as, unless the environment says otherwise.
const UIDS: std::ops::Range<u32> = 2_000_000_000..2_000_100_000;

/// A field of `/proc/PID/status`, or of a thread's.
fn field(status: &Path, name: &str) -> Result<String> {
    let text = fs::read_to_string(status)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line
        .with_context(|| format!("{name} in {}", status.display()))?
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" "))
}

/// The user of a process, who is it in every respect.
pub(crate) fn user(pid: i32) -> Result<u32> {
    let status = PathBuf::from(format!("/proc/{pid}/status"));
    let (users, groups) = (field(&status, "Uid")?, field(&status, "Gid")?);
    let all: BTreeSet<&str> = users.split(' ').chain(groups.split(' ')).collect();
    ensure!(all.len() == 1, "process {pid} is {users}, of {groups}");
    let uid = all.into_iter().next().context("a user")?.parse()?;
    ensure!(field(&status, "Groups")?.is_empty(), "process {pid} has groups");
    Ok(uid)
}

/// All that a VM's process must not have.
fn has_nothing(pid: i32) -> Result<()> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    for thread in fs::read_dir(proc.join("task"))? {
        let status = thread?.path().join("status");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            ensure!(field(&status, set)?.bytes().all(|digit| digit == b'0'), "{set} in {}", status.display());
        }
        ensure!(field(&status, "NoNewPrivs")? == "1" && field(&status, "Seccomp")? == "2", "{}", status.display());
    }
    ensure!(fs::read_dir(proc.join("root"))?.next().is_none(), "the root of {pid} is not empty");
    ensure!(fs::write(proc.join("root/x"), "").is_err(), "the root of {pid} can be written to");
    for namespace in ["mnt", "net", "ipc"] {
        let of = |path: PathBuf| fs::read_link(path.join("ns").join(namespace));
        ensure!(of(proc.clone())? != of("/proc/self".into())?, "{pid} is in the host's {namespace} namespace");
    }
    for open in fs::read_dir(proc.join("fd"))? {
        let open = open?.path();
        // Closed meanwhile, as the loop does with connections.
        let Ok(kind) = fs::metadata(&open) else { continue };
        ensure!(!kind.is_dir(), "{pid} has a directory open: {}", fs::read_link(&open)?.display());
        ensure!(!kind.file_type().is_block_device(), "{pid} has a disk open: {}", fs::read_link(&open)?.display());
    }
    Ok(())
}

fn each_is_confined(host: &Host) -> Result<()> {
    let own = Own::new(host, Parent::Warm)?;
    let children = Children::fork_in(&own.dirs, &own.tag, 3, Lifetime::Connection)?;
    let mut users = BTreeSet::new();
    for pid in children.pids() {
        let uid = user(pid)?;
        ensure!(UIDS.contains(&uid), "process {pid} is user {uid}");
        users.insert(uid);
        has_nothing(pid)?;
    }
    ensure!(users.len() == children.len(), "only {} users for {} sandboxes", users.len(), children.len());
    ensure!(taken()?.is_superset(&users), "{:?} are taken, and not {users:?}", taken()?);
    let template = i32::try_from(own.template()?)?;
    let status = PathBuf::from(format!("/proc/{template}/status"));
    // Group and user, and nothing else.
    ensure!(u64::from_str_radix(&field(&status, "CapEff")?, 16)? == 0b1100_0000, "{}", field(&status, "CapEff")?);
    ensure!(field(&status, "Seccomp")? == "2", "the template is not confined");
    ensure!(fs::read_dir(format!("/proc/{template}/root"))?.next().is_none(), "the template's root is not empty");
    children[0].sh("head -c 4M /dev/urandom > /root/big && sync && rm /root/big")?;
    ensure!(children[1].py("6 * 7")? == "42");
    drop(children);
    crate::world::wait_until("users are free again", std::time::Duration::from_secs(30), || {
        taken().is_ok_and(|taken| taken.is_disjoint(&users))
    })
}

/// A branch is a copy of a process without privileges, and so is what is forked from it; what is stored is not.
fn a_stored_branch_has_children_of_their_own_user(host: &Host) -> Result<()> {
    let own = Own::new(host, Parent::Warm)?;
    let children = Children::fork_in(&own.dirs, &own.tag, 1, Lifetime::Connection)?;
    let source = user(children.pids()[0])?;
    children[0].py("word = 'branched'")?;
    let tag: Tag = "e2e-jail".parse()?;
    let branch = take(&children[0], &tag, &own.dirs)?;
    let early = one(&tag, &own.dirs)?;
    ensure!(user(early.pids()[0])? == source, "it is somebody else, which nobody could make it");
    has_nothing(early.pids()[0])?;
    ensure!(early[0].py("word")? == "'branched'");
    branch.keep(None)?;
    let late = one(&tag, &own.dirs)?;
    let uid = user(late.pids()[0])?;
    ensure!(UIDS.contains(&uid) && uid != source, "it is user {uid}, as its source");
    has_nothing(late.pids()[0])?;
    ensure!(late[0].py("word")? == "'branched'" && early[0].py("word")? == "'branched'");
    drop((early, late));
    remove_snapshot(&tag, Removal::Force, &own.dirs)?;
    Ok(())
}

/// The users that are taken: locks of the kernel's on bytes of a file.
pub(crate) fn taken() -> Result<BTreeSet<u32>> {
    let inode = fs::metadata("/run/forkd.uids")?.ino().to_string();
    let locks = fs::read_to_string("/proc/locks")?;
    // Those of who looks for a free one are to write.
    let of_file = locks.lines().filter(|line| line.contains("OFDLCK") && line.contains(" READ "));
    let of_file = of_file.filter(|line| line.contains(&format!(":{inode} ")));
    of_file.map(|line| Ok(line.split_whitespace().rev().nth(1).context("a beginning")?.parse()?)).collect()
}
