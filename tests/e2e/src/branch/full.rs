//! A disk that is full while a branch is written down or a chain is made one: the cause is told, nothing half-done is left,
//! and with room it works.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use engine::{Collected, Garbage, Status, Store};
use types::Tag;

use super::{Taken, one, take};
use crate::Test;
use crate::fork::{Own, Parent, Run, WORD};
use crate::host::Host;
use crate::small_disk::SmallDisk;

pub(crate) const NATIVE_TESTS: &[Test] = &[("branch::disk_full", disk_full)];

const MIB: u64 = 1 << 20;
/// Room for everything.
const MUCH: u64 = 512 * MIB;
/// Room for nothing that is stored.
const LITTLE: u64 = 64 << 10;
const FULL: &str = "No space left on device";

fn disk_full(host: &Host) -> Result<()> {
    let mut own = Own::new(host, Parent::Native)?;
    let tried = is_told(host, &mut own);
    // The daemon that was started there goes with it.
    let stopped = forkd(host, &own, &["daemon", "stop"]).output()?;
    ensure!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    tried
}

/// The user's binary in the test's own home.
fn forkd(host: &Host, own: &Own, words: &[&str]) -> Command {
    let mut command = host.forkd();
    command.args(words).env("FORKD_HOME", own.path("")).stdout(Stdio::null());
    // Only the store is on the small disk.
    command.env("FORKD_STATE", own.path("registry.db")).env("FORKD_AUDIT_LOG", own.path("audit.log"));
    command
}

fn is_told(host: &Host, own: &mut Own) -> Result<()> {
    let disk = SmallDisk::mount(own.path("data"), MUCH)?;
    copy(&Store::new(&host.dirs), &own.tag, disk.path())?;
    own.dirs.data = disk.path().into();
    let (store, mut taken, children) = (Store::new(&own.dirs), Taken::new(&own.dirs), own.fork(1)?);
    let (tag, flat): (Tag, Tag) = ("e2e-no-room".parse()?, "e2e-no-room-flat".parse()?);
    children[0].run(&["fill", "8"])?;
    disk.grow(disk.used()? + LITTLE)?;
    let error = take(&children[0], &tag, &own.dirs)?.keep(None).err().context("there was no room for it")?;
    ensure!(format!("{error:#}").contains(FULL), "{error:#}");
    let status = store.status(&tag)?;
    ensure!(matches!(&status, Status::Failed(failure) if failure.reason.contains(FULL)), "{status:?}");
    ensure!(children[0].word()? == WORD);
    store.remove(&tag, engine::Removal::Plain)?;
    as_before(&store, &own.tag)?;
    let mut compact = forkd(host, own, &["snapshot-compact", "--from", own.tag.as_str(), "--to", flat.as_str()]);
    let output = compact.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1) && said.contains(FULL), "{said}");
    as_before(&store, &own.tag)?;
    disk.grow(MUCH)?;
    taken.keep(take(&children[0], &tag, &own.dirs)?)?;
    ensure!(compact.status()?.success());
    taken.adopt(&flat);
    for tag in [&tag, &flat] {
        engine::stop_template(tag, &own.dirs)?;
        ensure!(one(tag, &own.dirs)?[0].word()? == WORD);
    }
    Ok(())
}

/// Only what was there at first is there.
fn as_before(store: &Store, parent: &Tag) -> Result<()> {
    let listed = store.list()?;
    ensure!(matches!(&listed[..], [(tag, Ok(Status::Ready(_)))] if tag == parent), "{listed:?}");
    let garbage = store.gc(Garbage::Count)?;
    ensure!(garbage == Collected::default(), "{garbage:?}");
    Ok(())
}

/// Copies a snapshot of a store to another store's place.
fn copy(from: &Store, tag: &Tag, to: &Path) -> Result<()> {
    let manifest = from.get(tag)?.manifest().clone();
    let snapshots = to.join("snapshots");
    let layers: Vec<_> = manifest.layers().map(|layer| from.layer_path(&layer.digest)).collect();
    std::fs::create_dir_all(&snapshots)?;
    std::fs::create_dir_all(to.join("layers"))?;
    for (files, to) in [(vec![from.path(tag)], snapshots), (layers, to.join("layers"))] {
        let copied = Command::new("cp").args(["-a", "--sparse=always", "-t"]).arg(to).args(files).status()?;
        ensure!(copied.success(), "cp: {copied}");
    }
    Ok(())
}
