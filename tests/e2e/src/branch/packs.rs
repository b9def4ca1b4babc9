//! A snapshot travels: pushed with its ancestors and its disk, and forked from another store. What goes wrong on the way is
//! told, and changes nothing.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::{Collected, Garbage, Lifetime, Store, stop_template};
use types::{Dirs, Tag};

use super::hub::{Hub, PACKAGE};
use super::{Taken, take};
use crate::Test;
use crate::fork::{Children, Parent, Run, WORD};
use crate::host::Host;
use crate::small_disk::SmallDisk;
use crate::world::{names, wait_until};

pub(crate) const NATIVE_TESTS: &[Test] = &[("branch::packs_travel", packs_travel)];

const LIMIT: Duration = Duration::from_secs(60);
/// No room for a pack.
const LITTLE: u64 = 2 << 20;
/// Room for many.
const MUCH: u64 = 512 << 20;

/// The place a snapshot travels to.
struct Elsewhere<'h> {
    host: &'h Host,
    home: &'h Path,
    dirs: Dirs,
    disk: SmallDisk,
}

impl Elsewhere<'_> {
    /// The user's binary there.
    fn forkd(&self, words: &[&str]) -> Command {
        let mut command = self.host.forkd();
        command.args(words).env("FORKD_HOME", self.home).env_remove("FORKD_HUB_URL");
        // Only the store is on the small disk.
        command.env("FORKD_STATE", self.home.join("registry.db")).env("FORKD_AUDIT_LOG", self.home.join("audit.log"));
        command
    }

    /// It must work.
    fn done(&self, words: &[&str]) -> Result<()> {
        let output = self.forkd(words).output()?;
        ensure!(output.status.success(), "forkd {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// It must fail, say this, and leave nothing.
    fn refused(&self, output: &Output, words: &str) -> Result<()> {
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && said.contains(words), "it did not say `{words}` but: {said}");
        let store = Store::new(&self.dirs);
        ensure!(store.list()?.is_empty(), "{:?} is left", store.list()?);
        let garbage = store.gc(Garbage::Count)?;
        ensure!(garbage == Collected::default(), "{garbage:?} is left");
        Ok(())
    }
}

/// The daemon that the verbs have started there goes with it.
impl Drop for Elsewhere<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.done(&["daemon", "stop"]) {
            super::log(&format!("{error:#}"));
        }
    }
}

fn packs_travel(host: &Host) -> Result<()> {
    let (mut taken, children) = (Taken::new(&host.dirs), Children::fork(host, Parent::Native, 1)?);
    for words in [&["write", "1", "travelled"][..], &["remember", "1", "remembered"], &["fill", "8"]] {
        children[0].run(words)?;
    }
    let (tag, hub): (Tag, _) = ("e2e-packed".parse()?, Hub::open()?);
    taken.keep(take(&children[0], &tag, &host.dirs)?)?;
    drop(children);
    let pushed = host.forkd().args(["push", &hub.url("pack"), "--tag", tag.as_str(), "--quiet"]).output()?;
    ensure!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    let home = tempfile::tempdir_in(&host.dirs.cache)?;
    let dirs = Dirs::under(home.path());
    let disk = SmallDisk::mount(dirs.data.clone(), MUCH)?;
    let there = Elsewhere { host, home: home.path(), dirs, disk };
    bad_packs_are_refused(&there, &hub)?;
    full_disks_are_told_of(&there, &hub)?;
    let registry = hub.url("registry.json");
    there.done(&["pull", PACKAGE, "--hub", &registry])?;
    there.done(&["verify"])?;
    ensure!(names(&there.dirs.cache.join("packs")).is_empty(), "what was downloaded is left");
    let arrived = Children::fork_in(&there.dirs, &tag, 1, Lifetime::Connection)?;
    ensure!(arrived[0].run(&["read", "1"])? == "travelled" && arrived[0].run(&["recall", "1"])? == "remembered");
    ensure!(arrived[0].run(&["read", "0"])? == WORD && arrived[0].word()? == WORD);
    drop(arrived);
    stop_template(&tag, &there.dirs)?;
    Ok(())
}

/// One with a flipped bit, and one that is not what the hub lists.
fn bad_packs_are_refused(there: &Elsewhere<'_>, hub: &Hub) -> Result<()> {
    let damaged = there.home.join("damaged.tar.zst");
    let mut bytes = hub.shelf().pack.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&damaged, bytes)?;
    there.refused(&there.forkd(&["unpack", "--quiet"]).arg(&damaged).output()?, "error")?;
    hub.shelf().wrong_sum = Some("0".repeat(64));
    there.refused(&there.forkd(&["pull", PACKAGE, "--hub", &hub.url("registry.json")]).output()?, "its SHA-256 is")?;
    hub.shelf().wrong_sum = None;
    Ok(())
}

/// One that is too small from the start, and one that others fill meanwhile.
fn full_disks_are_told_of(there: &Elsewhere<'_>, hub: &Hub) -> Result<()> {
    there.disk.grow(LITTLE)?;
    hub.shelf().begun_at.clear();
    hub.shelf().hangs_up = true;
    there.refused(&there.forkd(&["pull", PACKAGE, "--hub", &hub.url("registry.json")]).output()?, "make room")?;
    let (total, begun) = {
        let shelf = hub.shelf();
        (shelf.pack.len(), shelf.begun_at.clone())
    };
    ensure!(begun == [0, total / 2], "the downloads of {total} bytes began at {begun:?}");
    there.disk.grow(MUCH)?;
    let mut command = there.forkd(&["unpack", "--quiet", "-"]);
    let mut unpacking = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (mut pipe, pack) = (unpacking.stdin.take().context("a pipe")?, hub.shelf().pack.clone());
    let (first, rest) = pack.split_at(pack.len() / 2);
    pipe.write_all(first)?;
    let begun =
        || names(Store::new(&there.dirs).dir()).iter().any(|name| name.to_string_lossy().starts_with(".staging"));
    wait_until("the first of it on the disk", LIMIT, begun)?;
    let filler = there.disk.fill()?;
    // Whoever has no room hangs up.
    if let Err(error) = pipe.write_all(rest) {
        ensure!(error.kind() == std::io::ErrorKind::BrokenPipe, "{error}");
    }
    drop(pipe);
    there.refused(&unpacking.wait_with_output()?, "No space left on device")?;
    Ok(std::fs::remove_file(filler)?)
}
