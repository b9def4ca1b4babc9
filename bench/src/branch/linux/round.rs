//! One branch, from a Linux at work to a snapshot in the store.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use engine::{
    Branch, BranchSpec, Child, ChildOptions, Extent, ForkSpec, Forked, Lifetime, Removal, Results, branch, fork,
    remove_snapshot,
};
use serde::{Deserialize, Serialize};
use session::ExecRequest;
use types::{Dirs, Tag};

use super::guest::{Stamper, Writer, us};
use crate::branch::gaps::Gaps;

/// What the branch is called for as long as it is there.
const BRANCH_TAG: &str = "bench-branch-taken";
/// How long the stamper is listened to before the branch, and after all is done.
const LISTEN: Duration = Duration::from_millis(500);
/// Until a child is ready; the emulated host is slow.
const FORK_LIMIT: Duration = Duration::from_secs(120);
const OUTPUT_LIMIT: usize = 64 << 10;

/// What a branch took, in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Round {
    /// What the VMM says for how long the guest did not run.
    pub(super) pause_us: f64,
    /// The stamper's longest gap before the branch was asked for: what the machine does to it anyway.
    pub(super) stall_before_us: f64,
    /// Its gap around the branch.
    pub(super) gap_us: f64,
    /// Its longest gap after, while a grandchild is born and the branch is written down.
    pub(super) stall_after_us: f64,
    /// From the request until a grandchild had run a program.
    pub(super) answered_us: f64,
    /// Bytes written down.
    pub(super) bytes: u64,
    /// From the request until these survive a loss of power. They were written after the grandchild had answered.
    pub(super) durable_us: f64,
}

pub(super) fn play(tag: &Tag, diverged_mib: u64) -> Result<Round> {
    let dirs = Dirs::from_env()?;
    let (forked, source) = one(tag, &dirs)?;
    let writer = Writer::start(&source, diverged_mib)?;
    let mut stamper = Stamper::start(&source)?;
    let clock = stamper.clock()?;
    thread::sleep(LISTEN);
    let before = stamper.ask()?;
    let asked = Instant::now();
    let spec = BranchSpec { child: source, tag: BRANCH_TAG.parse()?, extent: Extent::Diff };
    let branch = branch(spec, &dirs)?;
    let (branched, pause_us) = (asked.elapsed(), us(Duration::from_micros(branch.pause_us())));
    answer(branch.tag(), &dirs)?;
    let answered_us = us(asked.elapsed());
    let bytes = keep(branch, &dirs, || us(asked.elapsed()))?;
    thread::sleep(LISTEN);
    let after = stamper.ask()?;
    let gaps: Vec<_> = after.gaps.iter().map(|(end, gap)| (clock.since(asked, *end), *gap)).collect();
    let gaps = Gaps::of(&gaps, us(branched), clock.error_us);
    drop((writer, stamper, forked));
    Ok(Round {
        pause_us,
        stall_before_us: before.longest_us(),
        gap_us: gaps.pause,
        stall_after_us: gaps.after,
        answered_us,
        bytes: bytes.0,
        durable_us: bytes.1,
    })
}

/// One child, which lives as long as what it comes with.
fn one(tag: &Tag, dirs: &Dirs) -> Result<(Forked, Child)> {
    let spec = ForkSpec {
        tag: tag.clone(),
        children: vec![ChildOptions::default()],
        lifetime: Lifetime::Connection,
        results: Results::AllOrNothing,
        limit: FORK_LIMIT,
        cancel: None,
    };
    let forked = fork(&spec, dirs)?;
    let child = forked.children.iter().flatten().next().map(|ready| ready.child.clone());
    child.map(|child| (forked, child)).ok_or_else(|| anyhow::anyhow!("{tag} was forked into nothing"))
}

/// Has a child run a program, and ends it.
fn answer(tag: &Tag, dirs: &Dirs) -> Result<()> {
    let (_forked, child) = one(tag, dirs)?;
    let request = ExecRequest { argv: vec!["true".into()], ..ExecRequest::default() };
    let output = child.connect()?.output(&request, &[], OUTPUT_LIMIT)?;
    ensure!(output.status.shell_code() == 0, "true ended with {:?}", output.status);
    Ok(())
}

/// Stores the branch and removes it again; what was written, and when it was done.
fn keep(branch: Branch, dirs: &Dirs, clock: impl Fn() -> f64) -> Result<(u64, f64)> {
    let kept = branch.keep(None)?;
    let durable_us = clock();
    remove_snapshot(&BRANCH_TAG.parse()?, Removal::Force, dirs)?;
    Ok((kept.memory_bytes + kept.disk_bytes, durable_us))
}
