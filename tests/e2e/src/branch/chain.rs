//! Branches of branches: each is right, and stores what is its own and no more.

use std::process::Output;

use anyhow::{Context, Result, ensure};
use engine::{Kept, stop_template};
use serde_json::Value;
use types::Tag;

use super::{Taken, one, take};
use crate::Test;
use crate::finding::ensure_always;
use crate::fork::{Children, Parent, Py, Run};
use crate::host::Host;

pub(crate) const TESTS: &[Test] = &[("branch::packages_stack", packages_stack)];
pub(crate) const NATIVE_TESTS: &[Test] = &[("branch::deep_chains_are_right", deep_chains_are_right)];

/// How deep the chain is, unless [`DEPTH`] says it.
const LINKS: usize = 33;
/// The variable that asks for another depth; a chain has an end.
const DEPTH: &str = "FORKD_E2E_DEPTH";
/// The guest's own memory and what it fills, and no more.
const LINK_BYTES: u64 = (FILLED_MIB + 1) << 20;
const FILLED_MIB: u64 = 1;

/// What a link of a small package has at most: so many times its memory are in the whole chain, and so much is on its disk,
/// file system and caches of the interpreter included.
const OWN_SHARE: u64 = 2;
const PACKAGE_BYTES: u64 = 8 << 20;

fn deep_chains_are_right(host: &Host) -> Result<()> {
    let mut taken = Taken::new(&host.dirs);
    let mut children = Children::fork(host, Parent::Native, 1)?;
    let mut head: Option<Tag> = None;
    let links = std::env::var(DEPTH).map_or(Ok(LINKS), |depth| depth.parse())?;
    for depth in 0..links {
        let place = depth.to_string();
        children[0].run(&["remember", &place, &place])?;
        children[0].run(&["write", &place, &place])?;
        children[0].run(&["fill", &FILLED_MIB.to_string()])?;
        let tag: Tag = format!("e2e-chain-{depth}").parse()?;
        let branch = take(&children[0], &tag, &host.dirs)?;
        // From the live template, while nothing is stored yet.
        children = one(&tag, &host.dirs)?;
        let kept = taken.keep(branch)?;
        let (chain, own) = stored(&kept);
        ensure!(own < LINK_BYTES && (depth == 0 || own < chain), "link {depth} stores {own} of {chain} bytes");
        head = Some(tag);
    }
    drop(children);
    let head = head.context("a head")?;
    stop_template(&head, &host.dirs)?;
    let children = one(&head, &host.dirs)?;
    for place in (0..links).map(|depth| depth.to_string()) {
        ensure_always!(children[0].run(&["recall", &place])? == place, "link {place} of memory is of another");
        ensure_always!(children[0].run(&["read", &place])? == place, "link {place} of the disk is of another");
    }
    Ok(())
}

/// Bytes of memory in all layers, and in its own.
fn stored(kept: &Kept) -> (u64, u64) {
    let stored = kept.snapshot.manifest().memory_stored();
    (stored.chain, stored.own)
}

/// A module as a wheel would bring it, unpacked where Python looks for it.
fn install(name: &str, value: u32) -> String {
    let place = "/usr/lib/python3/dist-packages";
    let wheel = format!(
        "import zipfile; z = zipfile.ZipFile(\"/root/{name}.whl\", \"w\"); \
         z.writestr(\"{name}/__init__.py\", \"value = {value}\"); z.close(); \
         zipfile.ZipFile(\"/root/{name}.whl\").extractall(\"{place}\")"
    );
    format!("python3 -c '{wheel}'")
}

fn packages_stack(host: &Host) -> Result<()> {
    let base = host.parent(Parent::Warm)?;
    let mut taken = Taken::new(&host.dirs);
    let mut below = base;
    for (name, value) in [("first", 1), ("second", 2)] {
        let tag: Tag = format!("e2e-with-{name}").parse()?;
        let (from, command) = (below.as_str(), install(name, value));
        let built = forkd(host, &["snapshot-diff", "--from", from, "--tag", tag.as_str(), "--exec", &command])?;
        taken.adopt(&tag);
        ensure!(built.contains("of memory and"), "{built}");
        below = tag;
    }
    let info: Value = serde_json::from_str(&forkd(host, &["snapshot-info", below.as_str(), "--json"])?)?;
    ensure!(info["chain_depth"] == 2 && info["parent_tag"] == "e2e-with-first", "{info}");
    // A link has what its command has touched, and no copy of what is below it.
    let number = |name: &str| info[name].as_u64().with_context(|| format!("{name}: {info}"));
    let (memory, disk) = (number("memory_own_bytes")?, number("disk_own_bytes")?);
    ensure!(0 < memory && memory * OWN_SHARE < number("memory_physical_bytes")?, "{info}");
    ensure!(0 < disk && disk < PACKAGE_BYTES, "{info}");
    let children = one(&below, &host.dirs)?;
    ensure!(children[0].py("import first, second; first.value, second.value")? == "(1, 2)");
    let failing = run(host, &["snapshot-diff", "--from", below.as_str(), "--tag", "e2e-never", "--exec", "false"])?;
    ensure!(failing.status.code() == Some(1), "{failing:?}");
    ensure!(!forkd(host, &["images"])?.contains("e2e-never"));
    // A name that is taken is refused before anything runs: the command would have failed.
    let taken = run(host, &["snapshot-diff", "--from", below.as_str(), "--tag", below.as_str(), "--exec", "false"])?;
    let words = String::from_utf8_lossy(&taken.stderr);
    ensure!(taken.status.code() == Some(1) && words.contains("exists"), "{words}");
    Ok(())
}

fn run(host: &Host, words: &[&str]) -> Result<Output> {
    Ok(host.forkd().args(words).output()?)
}

fn forkd(host: &Host, words: &[&str]) -> Result<String> {
    let output = run(host, words)?;
    ensure!(output.status.success(), "forkd {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
