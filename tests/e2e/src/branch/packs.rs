//! A snapshot travels: packed with its ancestors and its disk, and forked from another store.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use engine::{Lifetime, stop_template};
use types::{Dirs, Tag};

use super::{Taken, take};
use crate::Test;
use crate::fork::{Children, Parent};
use crate::host::{Host, Sh};

pub(crate) const TESTS: &[Test] = &[("branch::packs_travel", packs_travel)];

fn packs_travel(host: &Host) -> Result<()> {
    let (mut taken, children) = (Taken::new(&host.dirs), Children::fork(host, Parent::Plain, 1)?);
    children[0].sh("echo travelled > /root/mark; sync; echo remembered > /run/mark")?;
    let tag: Tag = "e2e-packed".parse()?;
    taken.keep(take(&children[0], &tag, &host.dirs)?)?;
    drop(children);
    let elsewhere = tempfile::tempdir_in(&host.dirs.cache)?;
    let pack = elsewhere.path().join("pack.tar.zst");
    run(host.forkd().args(["pack", "--tag", tag.as_str(), "-o"]).arg(&pack))?;
    let dirs = Dirs::under(elsewhere.path());
    // What is damaged is refused, and leaves nothing.
    let damaged = elsewhere.path().join("damaged.tar.zst");
    damage(&pack, &damaged)?;
    let refused = there(host, elsewhere.path()).arg("unpack").arg(&damaged).output()?;
    ensure!(refused.status.code() == Some(1), "{refused:?}");
    ensure!(engine::Store::new(&dirs).list()?.is_empty(), "something is left of a refused pack");
    run(there(host, elsewhere.path()).arg("unpack").arg(&pack))?;
    run(there(host, elsewhere.path()).arg("verify"))?;
    let arrived = Children::fork_in(&dirs, &tag, 1, Lifetime::Connection)?;
    ensure!(arrived[0].sh("cat /root/mark /run/mark")? == "travelled\nremembered");
    drop(arrived);
    stop_template(&tag, &dirs)?;
    Ok(())
}

/// The user's binary where everything is below another directory.
fn there(host: &Host, home: &Path) -> Command {
    let mut command = host.forkd();
    command.env("FORKD_HOME", home);
    command
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A copy with one bit flipped in the middle.
fn damage(pack: &Path, to: &Path) -> Result<()> {
    let mut bytes = std::fs::read(pack)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    Ok(std::fs::write(to, bytes)?)
}
