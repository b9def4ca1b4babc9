//! What dies does so alone: a template, some children, a disk. The rest goes on, and nothing is left of the dead.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::{find, kill_many, list, sweep};
use rustix::process::Signal;
use serde_json::Value;
use types::Dirs;

use super::Parent;
use super::children::{Py, Run};
use super::own::{Own, lives};
use super::parents::WORD;
use crate::Test;
use crate::faults::signal;
use crate::host::{Host, Sh, shell};
use crate::small_disk::SmallDisk;
use crate::world::wait_until;

pub(crate) const TESTS: &[Test] = &[("fork::disk_full", disk_full)];
pub(crate) const NATIVE_TESTS: &[Test] = &[
    ("fork::children_outlive_who_asked", children_outlive_who_asked),
    ("fork::killed_template_leaves_children", killed_template_leaves_children),
    ("fork::half_killed", half_killed),
];
/// To be run when nothing else runs: they take all there is.
pub(crate) const LONE_NATIVE_TESTS: &[Test] = &[("fork::killed_template_in_flight", killed_template_in_flight)];

const IN_FLIGHT: usize = 100;
const LIMIT: Duration = Duration::from_secs(60);

fn kill(pid: u32) -> Result<()> {
    signal(pid, Signal::KILL)?;
    wait_until("the end of a killed process", LIMIT, || !lives(pid))
}

/// Runs the user's binary, which must succeed; what it printed.
fn forkd(host: &Host, words: &[&str]) -> Result<String> {
    let output = host.forkd().args(words).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "forkd {words:?}: {:?}: {said}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// `forkd fork` has ended when its children are used, through the other verbs.
fn children_outlive_who_asked(host: &Host) -> Result<()> {
    let tag = host.parent(Parent::Native)?;
    let report: Value = serde_json::from_str(&forkd(host, &["fork", "--tag", tag.as_str(), "-n", "2", "--json"])?)?;
    let ids = report["children"].as_array().into_iter().flatten().filter_map(|child| child["id"].as_str());
    let children = ids.map(|id| find(id, &host.dirs)).collect::<Result<Vec<_>, _>>()?;
    let used = children.iter().try_for_each(|child| use_and_kill(host, child.id()));
    // Whatever became of it, none is left.
    kill_many(&children).into_iter().collect::<Result<Vec<_>, _>>()?;
    ensure!(children.len() == 2, "{report}");
    used
}

fn use_and_kill(host: &Host, id: &str) -> Result<()> {
    ensure!(forkd(host, &["eval", "--child", id, "--", "word"])?.trim() == "word");
    ensure!(forkd(host, &["exec", "--child", id, "--", "recall", "0"])?.trim() == WORD);
    ensure!(forkd(host, &["exec", "--child", id, "--", "hostname"])?.trim() == id);
    forkd(host, &["ping", "--child", id])?;
    ensure!(forkd(host, &["ls"])?.contains(id), "{id} is not listed");
    forkd(host, &["kill", id])?;
    ensure!(!forkd(host, &["ls"])?.contains(id), "{id} is still listed");
    Ok(())
}

fn killed_template_leaves_children(host: &Host) -> Result<()> {
    let own = Own::new(host, Parent::Native)?;
    let children = own.fork(2)?;
    let first = own.template()?;
    kill(first)?;
    for child in children.iter() {
        ensure!(child.word()? == WORD);
        child.run(&["write", "1", "lives"])?;
        ensure!(child.run(&["read", "1"])? == "lives");
    }
    let more = own.fork(1)?;
    ensure!(own.template()? != first, "the dead template was taken for alive");
    ensure!(more[0].word()? == WORD);
    ensure!(list(&own.dirs)?.len() == 3);
    Ok(())
}

/// Killed when so many of the children asked for have begun to be: whatever came of it, it is told and it is whole.
fn killed_template_in_flight(host: &Host) -> Result<()> {
    let own = Own::new(host, Parent::Native)?;
    for begun in [1, IN_FLIGHT / 4] {
        let template = own.template()?;
        let forked = thread::scope(|scope| {
            let forking = scope.spawn(|| own.fork(IN_FLIGHT));
            let sockets = || {
                own.homes()
                    .iter()
                    .filter(|home| own.dirs.run.join("vms").join(home).join("control.sock").exists())
                    .count()
            };
            wait_until("children on their way", LIMIT, || sockets() >= begun || forking.is_finished())?;
            signal(template, Signal::KILL)?;
            forking.join().ok().context("the forker died")
        })?;
        match forked {
            Ok(children) => {
                ensure!(children.len() == IN_FLIGHT);
                children.iter().try_for_each(|child| child.ping().map(|_| ()))?;
            }
            Err(error) => {
                let said = format!("{error:#}");
                ensure!(said.contains("template died"), "the cause is not told: {said}");
            }
        }
        own.only_these_are_left(&[])?;
    }
    Ok(())
}

fn half_killed(host: &Host) -> Result<()> {
    let own = Own::new(host, Parent::Native)?;
    let children = own.fork(10)?;
    let (dead, living) = (&children[..5], &children[5..]);
    for pid in &children.pids()[..5] {
        kill(u32::try_from(*pid)?)?;
    }
    for child in living {
        ensure!(child.word()? == WORD);
    }
    let mut listed: Vec<String> = list(&own.dirs)?.iter().map(|child| child.id().to_owned()).collect();
    let mut expected: Vec<String> = living.iter().map(|child| child.id().to_owned()).collect();
    listed.sort();
    expected.sort();
    ensure!(listed == expected, "listed are {listed:?}");
    ensure!(dead.iter().all(|child| child.ping().is_err()), "a dead child answers");
    sweep(&own.dirs)?;
    let mut homes = own.homes();
    homes.sort();
    ensure!(homes == expected, "left are {homes:?}");
    drop(children);
    own.only_these_are_left(&[own.template()?])
}

fn disk_full(host: &Host) -> Result<()> {
    let mut own = Own::new(host, Parent::Warm)?;
    let disk = SmallDisk::mount(own.path("disk"), 32 << 20)?;
    own.dirs = Dirs { cache: disk.path().into(), ..own.dirs.clone() };
    let children = own.fork(3)?;
    let [greedy, others @ ..] = &children[..] else { anyhow::bail!("no children") };
    for child in others {
        child.sh("echo before > /etc/whose && sync")?;
    }
    let output = greedy.output(&shell("dd if=/dev/urandom of=/big bs=1M count=64 oflag=direct"), &[])?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.shell_code() == 1, "{:?}: {said}", output.status);
    ensure!(said.contains("Input/output error") || said.contains("Read-only file system"), "{said}");
    let log = greedy.log_tail();
    ensure!(log.contains("No space left on device"), "its log does not name the cause: {log}");
    for child in others {
        ensure!(child.py("word")? == "'parent'");
        ensure!(child.sh("cat /etc/whose")? == "before");
    }
    // Its space goes with it.
    engine::kill(greedy)?;
    for child in others {
        child.sh("head -c 1M /dev/urandom > /etc/whose && sync && test $(wc -c < /etc/whose) = 1048576")?;
    }
    drop(children);
    own.only_these_are_left(&[own.template()?])
}
