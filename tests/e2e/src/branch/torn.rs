//! No branch is ever torn, whatever the guest does when it is taken.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use engine::{Child, stop_template};
use types::Tag;

use super::{Taken, log, one, take};
use crate::Test;
use crate::fork::{Children, Parent};
use crate::host::{Host, Sh, argv, shell};

pub(crate) const TESTS: &[Test] = &[("branch::none_is_torn", none_is_torn)];

/// How many branches are taken, unless [`COUNT`] says how many: as many as do not make everybody wait.
const BRANCHES: usize = 10;
/// Of these, one in so many is stored and forked from the store.
const STORED_EVERY: usize = 5;
/// The variable that asks for more.
const COUNT: &str = "FORKD_E2E_BRANCHES";
/// How many rounds a branch must live through: in the first it may have been in the middle, in the second it looks at
/// everything that was there at the instant.
const ROUNDS: u64 = 2;
/// Where the program in the guest says how it goes.
const STATUS: &str = "/run/torture";
/// How often a guest looks whether the program goes on.
const TRIES: usize = 2000;

fn none_is_torn(host: &Host) -> Result<()> {
    // QEMU's emulation of nested virtualisation does not bear many busy vCPUs of one VM for long.
    let parent = if host.is_emulated() { Parent::Tiny } else { Parent::Wide };
    let source = Children::fork(host, parent, 1)?;
    let source = &source[0];
    start(source, &host.torture_guest)?;
    let mut taken = Taken::new(&host.dirs);
    let mut pauses = Vec::new();
    let count = std::env::var(COUNT).map_or(Ok(BRANCHES), |count| count.parse())?;
    ensure!(count > 0, "{COUNT} asks for nothing");
    for number in 0..count {
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
    log(&format!("{count} branches; pause {median} us in the median, {longest} us at most; {}", status(source)?));
    Ok(())
}

/// Brings the program in and waits until it has begun.
fn start(child: &Child, program: &Path) -> Result<()> {
    let program = std::fs::read(program)?;
    let brought = child.output(&shell("cat > /root/torture-guest && chmod +x /root/torture-guest"), &program)?;
    ensure!(brought.status.shell_code() == 0, "{brought:?}");
    let run = format!("setsid /root/torture-guest {STATUS} > /root/torture.log 2>&1 < /dev/null &");
    let started = child.output(&argv(&["sh", "-c", &run]), &[])?;
    ensure!(started.status.shell_code() == 0, "{started:?}");
    goes_on(child)
}

/// Lets the program in a child look at everything it has. The guest itself waits, so that this is one question.
fn goes_on(child: &Child) -> Result<()> {
    let script = format!(
        "first=; i=0; while [ $i -lt {TRIES} ]; do \
         read word rounds rest < {STATUS} 2>/dev/null; first=${{first:-$rounds}}; \
         [ \"$word\" = torn ] && break; \
         [ -n \"$first\" ] && [ \"$rounds\" -ge $((first + {ROUNDS})) ] && break; \
         sleep 0.02; i=$((i + 1)); done; cat {STATUS}; [ $i -lt {TRIES} ] || cat /root/torture.log"
    );
    let said = child.sh(&script)?;
    ensure!(said.starts_with("rounds ") && !said.contains('\n'), "it does not go on: {said}");
    Ok(())
}

fn status(child: &Child) -> Result<String> {
    child.sh(&format!("cat {STATUS} 2>/dev/null || true"))
}
