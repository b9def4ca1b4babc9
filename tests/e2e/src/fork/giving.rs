//! Memory that a guest has no use for any more is the host's again.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Parent;
use super::children::{Children, Py};
use crate::Test;
use crate::host::Host;
use crate::world::wait_until;

pub(crate) const TESTS: &[Test] = &[("fork::what_is_freed_is_given_back", what_is_freed_is_given_back)];

const MIB: u64 = 1 << 10;
/// As much as a guest on an emulated host writes in some seconds.
const TAKEN_MIB: u64 = 64;
/// Linux reports what is free every other second, a part of it at a time, and only in pieces of 2 MiB.
const PATIENCE: Duration = Duration::from_secs(90);

fn what_is_freed_is_given_back(host: &Host) -> Result<()> {
    let children = Children::fork(host, Parent::Warm, 1)?;
    let child = &children[0];
    let private = || -> Result<u64> { Ok(child.memory()?.context("it lives")?.private_kib) };
    child.py(&format!("hoard = bytearray(b'x') * ({TAKEN_MIB} << 20)"))?;
    let taken = private()?;
    // It may take what it had used and freed before, so this says nothing of how much more it is.
    ensure!(taken > TAKEN_MIB * MIB * 9 / 10, "{taken} KiB are not what it took");
    child.py("del hoard")?;
    let mut left = taken;
    let given = wait_until("the memory is given back", PATIENCE, || {
        left = private().unwrap_or(u64::MAX);
        left < taken - TAKEN_MIB * MIB * 3 / 4
    });
    given.with_context(|| format!("{taken} KiB, and {left} after it was freed"))?;
    // What was given back can be had again, and is whatever the guest puts there.
    ensure!(child.py("again = bytearray(b'y') * (16 << 20); again.count(b'y') == len(again)")? == "True");
    Ok(())
}
