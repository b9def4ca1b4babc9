//! Limits hold, one by one: who needs too much is ended, the others do not notice, and whoever asks is told why.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::{Child, FindError, find, kill_many, sweep};
use serde_json::Value;
use types::Tag;

use super::Parent;
use super::children::Run;
use super::parents::WORD;
use crate::Test;
use crate::branch::take;
use crate::host::Host;
use crate::world::{names, vmms_in, wait_until};

/// To be run when nothing else runs: what is left of others would be taken for theirs.
pub(crate) const TESTS: &[Test] =
    &[("fork::memory_limit", memory_limit), ("fork::memory_limit_before_ready", memory_limit_before_ready)];

const LIMIT_MIB: u64 = 32;
/// Where the children's groups are on the hosts that tests run on.
const GROUPS: &str = "/sys/fs/cgroup/forkd";
/// How long what was ended may take to be gone.
const TIDY: Duration = Duration::from_secs(30);
/// Less than the guest has is more than the limit allows.
const GREED: [&str; 2] = ["fill", "64"];

/// What of these is a child's.
fn of_children(dir: &Path) -> BTreeSet<OsString> {
    names(dir).into_iter().filter(|name| name.to_string_lossy().starts_with("sb-")).collect()
}

/// The children's control groups.
pub(crate) fn groups() -> BTreeSet<OsString> {
    of_children(Path::new(GROUPS))
}

fn group(child: &Child) -> PathBuf {
    Path::new(GROUPS).join(child.id())
}

/// All that could be left: directories, processes and groups.
type Traces = (BTreeSet<OsString>, BTreeSet<u32>, BTreeSet<OsString>);

fn traces(host: &Host) -> Traces {
    let vms = host.dirs.run.join("vms");
    (of_children(&vms), vmms_in(&vms), groups())
}

fn forkd(host: &Host, words: &[&str]) -> Result<Output> {
    Ok(host.forkd().args(words).output()?)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn memory_limit(host: &Host) -> Result<()> {
    let tag = host.parent(Parent::Native)?;
    sweep(&host.dirs)?;
    let before = traces(host);
    no_host_has_that_much(host, &tag)?;
    let limit = LIMIT_MIB.to_string();
    let forked = forkd(host, &["fork", "--tag", tag.as_str(), "-n", "3", "--memory-limit-mib", &limit, "--json"])?;
    ensure!(forked.status.success(), "{}", said(&forked));
    let report: Value = serde_json::from_slice(&forked.stdout)?;
    let ids = report["children"].as_array().into_iter().flatten().filter_map(|child| child["id"].as_str());
    let children = ids.map(|id| find(id, &host.dirs)).collect::<Result<Vec<_>, _>>()?;
    let held = are_limited(host, &children);
    let held = held.and_then(|()| a_branch_leaves_the_group(host, &children));
    let held = held.and_then(|()| one_is_greedy(host, &children));
    // Whatever became of it, none is left.
    kill_many(&children).into_iter().collect::<Result<Vec<_>, _>>()?;
    held?;
    is_tidy(host, &before)
}

/// Who asks for more memory than there is gets nothing but the figures.
fn no_host_has_that_much(host: &Host, tag: &Tag) -> Result<()> {
    let refused = forkd(host, &["fork", "--tag", tag.as_str(), "-n", "1", "--memory-limit-mib", "16777216"])?;
    let told = said(&refused).contains("MiB of memory to give, of which 16777");
    ensure!(refused.status.code() == Some(1) && told, "{refused:?}");
    Ok(())
}

fn is_tidy(host: &Host, before: &Traces) -> Result<()> {
    wait_until("a tidy host", TIDY, || traces(host) == *before)
        .with_context(|| format!("before: {before:?}\nafter: {:?}", traces(host)))
}

/// One that never becomes ready is named with its limit by the fork itself.
fn memory_limit_before_ready(host: &Host) -> Result<()> {
    let tag = host.parent(Parent::Wide)?;
    sweep(&host.dirs)?;
    let before = traces(host);
    let words = ["fork", "--tag", tag.as_str(), "-n", "1", "--memory-limit-mib", "32", "--env", "GREEDY=1"];
    let output = forkd(host, &words)?;
    let told = said(&output).contains("it ran out of its memory limit of 32 MiB before it was ready");
    ensure!(output.status.code() == Some(1) && told, "{output:?}");
    is_tidy(host, &before)
}

fn are_limited(host: &Host, children: &[Child]) -> Result<()> {
    let listed = forkd(host, &["ls", "--json"])?;
    let listed: Vec<Value> = serde_json::from_slice(&listed.stdout)?;
    for child in children {
        let pid = child.pid()?.context("its process")?;
        let member = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        ensure!(member.lines().any(|line| line == format!("0::/forkd/{}", child.id())), "{member}");
        let set = |file: &str| fs::read_to_string(group(child).join(file));
        ensure!(set("memory.max")?.trim() == (LIMIT_MIB << 20).to_string(), "{}", set("memory.max")?);
        ensure!(set("memory.oom.group")?.trim() == "1" && set("memory.swap.max")?.trim() == "0");
        let row = listed.iter().find(|row| row["id"] == child.id()).context("it is not listed")?;
        ensure!(row["memory_limit_mib"] == LIMIT_MIB, "{row}");
    }
    Ok(())
}

/// What is made of a limited sandbox is in no group of a sandbox's, and nobody gets the means to leave one by himself.
fn a_branch_leaves_the_group(host: &Host, children: &[Child]) -> Result<()> {
    let source = children.first().context("a child")?;
    let tag: Tag = "e2e-unlimited".parse()?;
    let branch = take(source, &tag, &host.dirs)?;
    let template = fs::read(host.dirs.run.join("templates").join(tag.as_str()).join("template.json"))?;
    let template = serde_json::from_slice::<Value>(&template)?["pid"].as_i64().context("its process")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    for pid in [template, source.pid()?.context("its process")?.into()] {
        let member = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        ensure!((member == own) == (pid == template), "process {pid} is in {member}, and this one in {own}");
        for open in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let Ok(target) = fs::read_link(open?.path()) else { continue };
            ensure!(!target.starts_with("/sys/fs/cgroup"), "process {pid} has {} open", target.display());
        }
    }
    drop(branch);
    Ok(())
}

fn one_is_greedy(host: &Host, children: &[Child]) -> Result<()> {
    let [greedy, others @ ..] = children else { anyhow::bail!("no children") };
    let named = format!("sandbox {} ran out of its memory limit of {LIMIT_MIB} MiB", greedy.id());
    // Who speaks with it when it dies is told why, and so are those who come later.
    let exec = ["exec", "--child", greedy.id(), "--"];
    for words in [&[&exec[..], &GREED].concat()[..], &["ping", greedy.id()], &[&exec[..], &["true"]].concat()] {
        let output = forkd(host, words)?;
        ensure!(output.status.code() == Some(1) && said(&output).contains(&named), "{words:?}: {output:?}");
    }
    for child in others {
        ensure!(child.word()? == WORD && child.cause_of_death().is_none());
        child.run(&["write", "1", "mine"])?;
        ensure!(child.run(&["read", "1"])? == "mine");
    }
    // The daemon, whose it was, knows the reason by now.
    wait_until("the dead one's burial", TIDY, || !group(greedy).exists() && !greedy.path().exists())?;
    ensure!(matches!(find(greedy.id(), &host.dirs), Err(FindError::Unknown { .. })));
    for child in others {
        let killed = forkd(host, &["kill", "--child", child.id()])?;
        ensure!(killed.status.success() && !group(child).exists(), "{killed:?}");
    }
    Ok(())
}
