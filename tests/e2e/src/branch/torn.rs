//! No branch is ever torn, whatever the guest does when it is taken.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use engine::{Child, stop_template};
use rustix::process::Signal;
use session::{Event, ExitStatus};
use types::Tag;

use super::{Taken, log, one, take};
use crate::Test;
use crate::finding::ensure_always;
use crate::fork::{Children, Parent, Run};
use crate::host::{Host, Sh, argv, shell};

pub(crate) const TESTS: &[Test] = &[("branch::none_is_torn", none_is_torn)];
pub(crate) const NATIVE_TESTS: &[Test] = &[("branch::none_of_many_is_torn", none_of_many_is_torn)];

/// How many branches are taken, unless [`COUNT`] says how many: as many as do not make everybody wait.
const BRANCHES: usize = 6;
const NATIVE_BRANCHES: usize = 200;
/// One in so many is also forked from the store.
const FORKED_FROM_STORE_EVERY: usize = 5;
/// The variable that asks for more.
const COUNT: &str = "FORKD_E2E_BRANCHES";
/// What the native guest ends with when it found something else than it left.
const TORN: i32 = 1;
/// How many rounds a branch must live through: in the first it may have been in the middle, in the second it looks at
/// everything that was there at the instant.
const ROUNDS: u64 = 2;
/// Where the program in the guest says how it goes.
const STATUS: &str = "/run/torture";
/// How long the source is looked at after a branch.
const WINDOW_SECS: f32 = 0.3;
/// How many times what a fork takes to begin the source may take to go on: a fork has the host's attention.
const FAIR: u64 = 2;
/// How often a guest looks whether the program goes on.
const TRIES: usize = 2000;

fn none_is_torn(host: &Host) -> Result<()> {
    // QEMU's emulation of nested virtualisation does not bear many busy vCPUs of one VM for long.
    let parent = if host.is_emulated() { Parent::Tiny } else { Parent::Wide };
    let source = Children::fork(host, parent, 1)?;
    let source = &source[0];
    start(source, &host.torture_guest)?;
    let mut noticed = Vec::new();
    for number in 0..how_many(BRANCHES)? {
        let (tag, mut taken) = (tag_of(number)?, Taken::new(&host.dirs));
        let (stall_us, pause_us) = stall_while(source, || {
            let branch = take(source, &tag, &host.dirs)?;
            let pause_us = branch.pause_us();
            // It is written while the source runs on.
            taken.keep(branch)?;
            Ok(pause_us)
        })?;
        let start_us = goes_on(&one(&tag, &host.dirs)?[0]).with_context(|| format!("the live branch {number}"))?;
        noticed.push(Noticed { pause_us, stall_us, start_us });
        if number % FORKED_FROM_STORE_EVERY == 0 {
            stop_template(&tag, &host.dirs)?;
            goes_on(&one(&tag, &host.dirs)?[0]).with_context(|| format!("the stored branch {number}"))?;
        }
    }
    goes_on(source).context("the source")?;
    notices_no_more(&noticed)
}

/// The same of a guest that is alone with its memory and its disk, and whose CPUs never rest but to wake each other.
fn none_of_many_is_torn(host: &Host) -> Result<()> {
    let source = Children::fork(host, Parent::NativeWide, 1)?;
    ensure!(source[0].run(&["nproc"])? == "4");
    let mut toil = source[0].exec(&argv(&["toil"]))?;
    let mut rounds = 0;
    for number in 0..how_many(NATIVE_BRANCHES)? {
        let (tag, mut taken) = (tag_of(number)?, Taken::new(&host.dirs));
        let branch = take(&source[0], &tag, &host.dirs)?;
        let toiled = is_whole(&one(&tag, &host.dirs)?[0]).with_context(|| format!("the live branch {number}"))?;
        ensure!(toiled > rounds, "the source does not toil: {toiled} rounds in branch {number}");
        rounds = toiled;
        if number % FORKED_FROM_STORE_EVERY == 0 {
            taken.keep(branch)?;
            stop_template(&tag, &host.dirs)?;
            is_whole(&one(&tag, &host.dirs)?[0]).with_context(|| format!("the stored branch {number}"))?;
        }
    }
    is_whole(&source[0]).context("the source")?;
    toil.control().signal(Signal::TERM.as_raw())?;
    let ended = toil.next_event()?;
    let expected = Event::Exited { status: ExitStatus::Signal(Signal::TERM.as_raw()), timed_out: false };
    ensure!(ended == expected, "it did not toil to the end: {ended:?}");
    Ok(())
}

/// Has the native guest look at what it toiled over; for how many rounds it did so.
pub(crate) fn is_whole(child: &Child) -> Result<u64> {
    let looked = child.output(&argv(&["check"]), &[])?;
    let code = looked.status.shell_code();
    ensure_always!(code != TORN, "it is torn");
    ensure!(code == 0, "it says {code}: one of its CPUs does not go on");
    Ok(String::from_utf8(looked.stdout)?.trim_end().parse()?)
}

fn how_many(usual: usize) -> Result<usize> {
    let count = std::env::var(COUNT).map_or(Ok(usual), |count| count.parse())?;
    ensure!(count > 0, "{COUNT} asks for nothing");
    Ok(count)
}

fn tag_of(number: usize) -> Result<Tag> {
    Ok(format!("e2e-torn-{number}").parse()?)
}

/// What a branch was for those who were in it, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Noticed {
    /// For how long the VMM says that it stopped the source.
    pause_us: u64,
    /// For how long the source itself did not run at most, while it was branched and the branch was written.
    stall_us: u64,
    /// The same for a VM that was forked from the branch.
    start_us: u64,
}

/// The source notices the pause, and then what every VM pays that begins with empty page tables, as a fork of the branch
/// does; nothing else holds it up. A host that has other things to do can hold up anybody once, but not every time.
fn notices_no_more(noticed: &[Noticed]) -> Result<()> {
    let median = |of: fn(&Noticed) -> u64| {
        let mut all: Vec<u64> = noticed.iter().map(of).collect();
        all.sort_unstable();
        (all[all.len() / 2], all[all.len() - 1])
    };
    let (pause, stall, start) = (median(|it| it.pause_us), median(|it| it.stall_us), median(|it| it.start_us));
    log(&format!(
        "{} branches, us in the median and at most: pause {pause:?}, longest stall of the source {stall:?}, \
         of a fork when it begins {start:?}",
        noticed.len()
    ));
    ensure!(stall.0 <= pause.0 + FAIR * start.0, "the source was held up by something else");
    Ok(())
}

/// What the guest says about itself while something happens: the longest time that it did not run.
fn stall_while<T>(child: &Child, happens: impl FnOnce() -> Result<T>) -> Result<(u64, T)> {
    child.sh(&format!(": > {STATUS}.mark; while [ -e {STATUS}.mark ]; do sleep 0.01; done"))?;
    let happened = happens()?;
    Ok((stall_us(&child.sh(&format!("sleep {WINDOW_SECS}; cat {STATUS}"))?)?, happened))
}

/// The longest stall that a status line tells of.
fn stall_us(said: &str) -> Result<u64> {
    let stall_us = said.rsplit(' ').next().and_then(|word| word.parse().ok());
    stall_us.with_context(|| format!("it says: {said}"))
}

/// Brings the program in and waits until it has begun.
fn start(child: &Child, program: &Path) -> Result<()> {
    let program = std::fs::read(program)?;
    let brought = child.output(&shell("cat > /root/torture-guest && chmod +x /root/torture-guest"), &program)?;
    ensure!(brought.status.shell_code() == 0, "{brought:?}");
    let run = format!("setsid /root/torture-guest {STATUS} > /root/torture.log 2>&1 < /dev/null &");
    let started = child.output(&argv(&["sh", "-c", &run]), &[])?;
    ensure!(started.status.shell_code() == 0, "{started:?}");
    goes_on(child).map(drop)
}

/// Lets the program in a child look at everything it has, and tells its longest stall. The guest itself waits, so that
/// this is one question.
fn goes_on(child: &Child) -> Result<u64> {
    let script = format!(
        "first=; i=0; while [ $i -lt {TRIES} ]; do \
         read word rounds rest < {STATUS} 2>/dev/null; first=${{first:-$rounds}}; \
         [ \"$word\" = torn ] && break; \
         [ -n \"$first\" ] && [ \"$rounds\" -ge $((first + {ROUNDS})) ] && break; \
         sleep 0.02; i=$((i + 1)); done; cat {STATUS}; [ $i -lt {TRIES} ] || cat /root/torture.log"
    );
    let said = child.sh(&script)?;
    ensure_always!(!said.starts_with("torn"), "it is {said}");
    ensure!(said.starts_with("rounds ") && !said.contains('\n'), "it does not go on: {said}");
    stall_us(&said)
}
