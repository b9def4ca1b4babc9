//! No branch is ever torn, whatever the guest does when it is taken.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use engine::{Child, stop_template};
use types::Tag;

use super::torture::{STATUS, WORD};
use super::{Taken, log, one, take};
use crate::Test;
use crate::fork::{Children, Parent};
use crate::host::{Host, Sh, argv, shell};

pub(crate) const TESTS: &[Test] = &[("branch::none_is_torn", none_is_torn)];

/// How many branches are taken.
const BRANCHES: usize = 200;
/// Of these, one in so many is stored and forked from the store.
const STORED_EVERY: usize = 40;
/// How many rounds a branch must live through: in the first it may have been in the middle, in the second it looks at
/// everything that was there at the instant.
const ROUNDS: u64 = 2;
const LIMIT: Duration = Duration::from_secs(60);

fn none_is_torn(host: &Host) -> Result<()> {
    let source = Children::fork(host, Parent::Wide, 1)?;
    let source = &source[0];
    start(source)?;
    let mut taken = Taken::new(&host.dirs);
    let mut pauses = Vec::new();
    let begun = Instant::now();
    for number in 0..BRANCHES {
        if number % STORED_EVERY == 0 {
            log(&format!("{number} branches after {} s", begun.elapsed().as_secs()));
        }
        let tag: Tag = format!("e2e-torn-{number}").parse()?;
        let branch = take(source, &tag, &host.dirs)?;
        pauses.push(branch.pause_us());
        goes_on(&one(&tag, &host.dirs)?[0]).with_context(|| format!("the live branch {number}"))?;
        if number % STORED_EVERY == 0 {
            taken.keep(branch)?;
            stop_template(&tag, &host.dirs)?;
            goes_on(&one(&tag, &host.dirs)?[0]).with_context(|| format!("the stored branch {number}"))?;
        }
    }
    goes_on(source).context("the source")?;
    pauses.sort_unstable();
    let (median, longest) = (pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
    log(&format!("{BRANCHES} branches; pause {median} us in the median, {longest} us at most; {}", status(source)?));
    Ok(())
}

/// Brings the program in and waits until it has begun.
fn start(child: &Child) -> Result<()> {
    let program = std::fs::read(std::env::current_exe()?)?;
    let brought = child.output(&shell("cat > /root/torture-guest && chmod +x /root/torture-guest"), &program)?;
    ensure!(brought.status.shell_code() == 0, "{brought:?}");
    let run = format!("setsid /root/torture-guest {WORD} > /root/torture.log 2>&1 < /dev/null &");
    let started = child.output(&argv(&["sh", "-c", &run]), &[])?;
    ensure!(started.status.shell_code() == 0, "{started:?}");
    goes_on(child)
}

/// Lets the program in a child look at everything it has.
fn goes_on(child: &Child) -> Result<()> {
    let until = Instant::now() + LIMIT;
    let mut first = None;
    while Instant::now() < until {
        let Some(rounds) = rounds(&status(child)?)? else { continue };
        if rounds >= *first.get_or_insert(rounds) + ROUNDS {
            return Ok(());
        }
    }
    bail!("it does not go on: {}, {}", status(child)?, child.sh("cat /root/torture.log")?)
}

fn status(child: &Child) -> Result<String> {
    child.sh(&format!("cat {STATUS} 2>/dev/null || true"))
}

fn rounds(status: &str) -> Result<Option<u64>> {
    ensure!(!status.starts_with("torn"), "{status}");
    let mut words = status.split(' ');
    Ok(match (words.next(), words.next()) {
        (Some("rounds"), Some(rounds)) => Some(rounds.parse()?),
        _ => None,
    })
}
