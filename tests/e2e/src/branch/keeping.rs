//! While a branch is being written it can be forked; whoever dies meanwhile, the store is whole and nothing is left.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use engine::{Branch, BranchError, BranchSpec, Extent, Removal, Status, Store, StoreError};
use rustix::process::Signal;
use serde_json::Value;
use types::Tag;

use super::{Taken, one, take};
use crate::Test;
use crate::faults::signal;
use crate::finding::ensure_always;
use crate::fork::{Own, Parent, Run, WORD, lives};
use crate::host::Host;
use crate::world::{vmms_in, vmms_of, wait_until};

pub(crate) const NATIVE_TESTS: &[Test] = &[
    ("branch::what_is_written_can_be_forked", what_is_written_can_be_forked),
    ("branch::killed_templates_lose_nothing", killed_templates_lose_nothing),
    ("branch::killed_writers_lose_nothing", killed_writers_lose_nothing),
    ("branch::an_orphan_is_stored_in_full", an_orphan_is_stored_in_full),
    ("branch::nobody_waits", nobody_waits),
    ("branch::who_waits_may_be_killed", who_waits_may_be_killed),
];

const LIMIT: Duration = Duration::from_secs(60);
/// What takes long enough to be written for somebody to be killed meanwhile.
const FILLED_MIB: &str = "90";

fn what_is_written_can_be_forked(host: &Host) -> Result<()> {
    let own = Own::new(host, Parent::Native)?;
    let (mut taken, children) = (Taken::new(&own.dirs), own.fork(1)?);
    let tag: Tag = "e2e-writing".parse()?;
    children[0].remember("1")?;
    let branch = take(&children[0], &tag, &own.dirs)?;
    let store = Store::new(&own.dirs);
    ensure!(matches!(store.status(&tag)?, Status::Writing(_)));
    let second: Tag = "e2e-writing-too".parse()?;
    let grandchildren = one(&tag, &own.dirs)?;
    ensure!(grandchildren[0].word()? == "1");
    grandchildren[0].remember("2")?;
    children[0].remember("3")?;
    // A branch of what is not stored yet waits for it, and not the other way round.
    let later = take(&grandchildren[0], &second, &own.dirs)?;
    ensure!(one(&second, &own.dirs)?[0].word()? == "2");
    ensure!(matches!(take(&children[0], &tag, &own.dirs), Err(error) if error.to_string().contains("being written")));
    taken.keep(branch)?;
    let kept = taken.keep(later)?;
    ensure!(kept.snapshot.manifest().depth() == 2, "{:?}", kept.snapshot.manifest());
    for (tag, mark) in [(&tag, "1"), (&second, "2")] {
        engine::stop_template(tag, &own.dirs)?;
        ensure_always!(one(tag, &own.dirs)?[0].word()? == mark, "`{tag}` is of another instant");
    }
    Ok(())
}

fn killed_templates_lose_nothing(host: &Host) -> Result<()> {
    let own = Own::new(host, Parent::Native)?;
    let (mut taken, children) = (Taken::new(&own.dirs), own.fork(1)?);
    // Before anybody writes: the branch is gone, and says so.
    let tag: Tag = "e2e-killed".parse()?;
    children[0].remember("7")?;
    let branch = take(&children[0], &tag, &own.dirs)?;
    kill(template(&own, &tag)?)?;
    let error = branch.keep(None).err().context("nobody was there to write it")?;
    ensure!(matches!(error, BranchError::Template(_) | BranchError::WriterDied { .. }), "{error}");
    ensure!(matches!(Store::new(&own.dirs).status(&tag)?, Status::Failed(_)));
    // The tag is free again, and the source never noticed.
    let branch = take(&children[0], &tag, &own.dirs)?;
    taken.keep(branch)?;
    kill(template(&own, &tag)?)?;
    ensure!(one(&tag, &own.dirs)?[0].word()? == "7", "from the store");
    // Dropped without being kept, nothing is left of it.
    let dropped: Tag = "e2e-dropped".parse()?;
    drop(take(&children[0], &dropped, &own.dirs)?);
    ensure!(matches!(Store::new(&own.dirs).status(&dropped), Err(StoreError::Unknown { .. })));
    ensure!(!own.dirs.run.join("templates").join(dropped.as_str()).exists());
    Ok(())
}

/// Who writes is killed in the midst of it: alone, and another one writes it; with the template, and it says so.
fn killed_writers_lose_nothing(host: &Host) -> Result<()> {
    let own = Own::new(host, Parent::Native)?;
    let (mut taken, children) = (Taken::new(&own.dirs), own.fork(1)?);
    children[0].run(&["fill", FILLED_MIB])?;
    children[0].remember("8")?;
    let tag: Tag = "e2e-lost".parse()?;
    let lost = keep_while(&own, take(&children[0], &tag, &own.dirs)?, |template, writer| {
        kill(template)?;
        kill(writer)
    })?;
    let error = lost.err().context("nobody was left to write it")?;
    ensure!(matches!(error, BranchError::Template(_) | BranchError::WriterDied { .. }), "{error}");
    ensure!(matches!(Store::new(&own.dirs).status(&tag)?, Status::Failed(_)));
    keep_while(&own, take(&children[0], &tag, &own.dirs)?, |_, writer| kill(writer))??;
    taken.adopt(&tag);
    engine::stop_template(&tag, &own.dirs)?;
    ensure_always!(one(&tag, &own.dirs)?[0].word()? == "8", "`{tag}` is of another instant");
    ensure!(children[0].word()? == "8", "the source noticed");
    Ok(())
}

/// Keeps a branch, and does something to its template and to the process that writes it, which is held in the midst of it.
fn keep_while(
    own: &Own,
    branch: Branch,
    happens: impl FnOnce(u32, u32) -> Result<()>,
) -> Result<Result<(), BranchError>> {
    let template = template(own, branch.tag())?;
    thread::scope(|scope| {
        let keeping = scope.spawn(move || branch.keep(None).map(drop));
        let mut writer = None;
        soon("a process that writes", || {
            writer = vmms_of(template).first().copied();
            writer.is_some()
        })?;
        let writer = writer.context("it was there")?;
        signal(writer, Signal::STOP)?;
        happens(template, writer)?;
        keeping.join().ok().context("it panicked")
    })
}

/// Waits for what may be over soon.
fn soon(what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let until = Instant::now() + LIMIT;
    while !done() {
        ensure!(Instant::now() < until, "{what} was not seen within {LIMIT:?}");
        thread::yield_now();
    }
    Ok(())
}

/// Of a sandbox whose snapshot is gone nothing can be built on what differs, and all of it is there to be stored.
fn an_orphan_is_stored_in_full(host: &Host) -> Result<()> {
    let own = Own::new(host, Parent::Native)?;
    let (mut taken, removed, full) = (Taken::new(&own.dirs), "e2e-removed".parse()?, "e2e-orphan".parse()?);
    host.native_files()?.snapshot(&removed, &own.dirs)?;
    let children = one(&removed, &own.dirs)?;
    children[0].remember("9")?;
    children[0].run(&["write", "1", "9"])?;
    engine::remove_snapshot(&removed, Removal::Force, &own.dirs)?;
    ensure!(matches!(take(&children[0], &full, &own.dirs), Err(error) if error.to_string().ends_with("--full")));
    let spec = BranchSpec { child: children[0].clone(), tag: full.clone(), extent: Extent::Full };
    taken.keep(engine::branch(spec, &own.dirs)?)?;
    drop(children);
    engine::stop_template(&full, &own.dirs)?;
    let stored = one(&full, &own.dirs)?;
    ensure_always!(stored[0].word()? == "9" && stored[0].run(&["read", "1"])? == "9", "it is of another instant");
    // What the one that is gone had written.
    ensure!(stored[0].run(&["read", "0"])? == WORD, "the disk of its snapshot is lost");
    Ok(())
}

fn kill(pid: u32) -> Result<()> {
    signal(pid, Signal::KILL)?;
    wait_until("its end", LIMIT, || !lives(pid))
}

fn template(own: &Own, tag: &Tag) -> Result<u32> {
    let record = own.dirs.run.join("templates").join(tag.as_str()).join("template.json");
    let record: Value = serde_json::from_slice(&std::fs::read(record)?)?;
    Ok(u32::try_from(record["pid"].as_u64().context("a process id")?)?)
}

/// `--no-wait`: the forkd that was asked leaves, and the daemon writes.
fn nobody_waits(host: &Host) -> Result<()> {
    let children = crate::fork::Children::fork(host, Parent::Native, 1)?;
    let (id, mut taken, store) = (children[0].id(), Taken::new(&host.dirs), Store::new(&host.dirs));
    let tag: Tag = "e2e-nobody-waits".parse()?;
    children[0].remember("5")?;
    let output = host
        .forkd()
        .args(["snapshot", "--from-sandbox", id, "--tag", tag.as_str(), "--live", "--no-wait", "--json"])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    taken.adopt(&tag);
    let told: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(told["status"] == "writing" && told["pause_ms"].as_f64().is_some_and(|pause| pause > 0.0), "{told}");
    ensure!(one(&tag, &host.dirs)?[0].word()? == "5");
    let mut status = String::new();
    wait_until("the snapshot", LIMIT, || {
        status = format!("{:?}", store.status(&tag));
        matches!(store.status(&tag), Ok(Status::Ready(_)))
    })
    .context(status)?;
    let again = host.forkd().args(["snapshot", "--from-sandbox", id, "--tag", tag.as_str(), "--no-wait"]).output()?;
    let words = String::from_utf8_lossy(&again.stderr);
    ensure!(again.status.code() == Some(1) && words.contains("exists"), "{words}");
    ensure!(!vmms_in(&host.dirs.run).is_empty());
    Ok(())
}

/// The forkd that waits is killed; what it waited for becomes what it would have.
fn who_waits_may_be_killed(host: &Host) -> Result<()> {
    let children = crate::fork::Children::fork(host, Parent::Native, 1)?;
    let (mut taken, store) = (Taken::new(&host.dirs), Store::new(&host.dirs));
    let tag: Tag = "e2e-waited-for".parse()?;
    children[0].run(&["fill", FILLED_MIB])?;
    children[0].remember("6")?;
    let words = ["snapshot", "--from-sandbox", children[0].id(), "--tag", tag.as_str()];
    let mut waiting = host.forkd().args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let seen = soon("the branch", || matches!(store.status(&tag), Ok(Status::Writing(_) | Status::Ready(_))));
    let early = matches!(store.status(&tag), Ok(Status::Writing(_)));
    waiting.kill()?;
    waiting.wait()?;
    taken.adopt(&tag);
    seen?;
    ensure!(early, "it was written before anybody could be killed");
    wait_until("the snapshot", LIMIT, || matches!(store.status(&tag), Ok(Status::Ready(_))))?;
    engine::stop_template(&tag, &host.dirs)?;
    ensure_always!(one(&tag, &host.dirs)?[0].word()? == "6", "`{tag}` is of another instant");
    Ok(())
}
