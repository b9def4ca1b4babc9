//! Many sandboxes on networks of their own, of which nothing is left: no namespace, interface, route, rule, control group,
//! directory or process. Whether control groups are left can only be seen where sandboxes have any; where this host has none,
//! `behind` looks at fewer sandboxes in the emulated one, and at their users.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::{BootSpec, Lifetime, Limits, Networks, Removal, SnapshotSpec, Tap, remove_snapshot, snapshot};
use types::Tag;
use types::progress::Silent;

use crate::Test;
use crate::fork::jail::user;
use crate::fork::{Children, groups};
use crate::host::Host;
use crate::internet::{HOST, Internet, ONE};
use crate::world::{names, vmms_in, wait_until};

/// To be run when nothing else runs: they take all there is, and look at all there is.
pub(crate) const TESTS: &[Test] =
    &[("native::five_hundred_networks_leave_nothing", five_hundred_networks_leave_nothing)];

const ROUNDS: usize = 5;
const AT_ONCE: usize = 100;
/// How long networks may take to be ready for the next, and what ended to be gone.
const TIDY: Duration = Duration::from_secs(60);
const MEMORY_MIB: u64 = 256;

fn five_hundred_networks_leave_nothing(host: &Host) -> Result<()> {
    let host = host.with_own_home()?;
    let (before, mut internet) = (groups(), Internet::new(AT_ONCE, &[])?);
    let tag: Tag = "e2e-networks".parse()?;
    take(&host, &tag, &internet)?;
    let mut users = BTreeSet::new();
    for _ in 0..ROUNDS {
        users.extend(round(&host, &tag, &internet)?);
    }
    ensure!(users.len() >= AT_ONCE, "{} users were {AT_ONCE} sandboxes at once", users.len());
    remove_snapshot(&tag, Removal::Force, &host.dirs)?;
    internet.pool = None;
    let left = names(internet.names.path()).into_iter().filter_map(|name| name.into_string().ok());
    let left: Vec<String> = left.filter(|name| name.starts_with("forkd-")).collect();
    ensure!(left.is_empty(), "namespaces: {left:?}");
    for what in ["link", "address", "route", "neighbour"] {
        let left = internet.host_has(what)?;
        ensure!(!left.contains("forkd-") && !left.contains("198.18."), "{what}: {left}");
    }
    ensure!(internet.opened()? == 0, "{} rules", internet.opened()?);
    ensure!(groups() == before, "control groups: {:?}", groups());
    wait_until("the end of all processes", TIDY, || vmms_in(&host.dirs.run).is_empty())
}

/// As whom they ran.
fn round(host: &Host, tag: &Tag, internet: &Internet) -> Result<BTreeSet<u32>> {
    let pool = internet.pool()?;
    wait_until("networks are ready", TIDY, || pool.counts() == (AT_ONCE, 0))?;
    let given = || Ok(Arc::clone(&pool));
    let egress = Some(format!("{ONE}:80,{HOST}:80,a.example:443").parse()?);
    let memory = has_groups().then(|| MEMORY_MIB.try_into()).transpose()?;
    let limits = Limits { memory, ..Limits::default() };
    let networks = Networks { pool: &given, egress, limits: None };
    let children = Children::fork_with(&host.dirs, tag, AT_ONCE, Lifetime::Connection, limits, Some(&networks))?;
    ensure!(pool.counts().1 == AT_ONCE, "{:?}", pool.counts());
    ensure!(internet.opened()? >= AT_ONCE, "{} rules for what they named of the host's", internet.opened()?);
    let users = children.pids().into_iter().map(user).collect::<Result<BTreeSet<u32>>>()?;
    let some = children.iter().step_by(AT_ONCE / 5);
    for child in some {
        let number = child.network()?.context("it has a network")?.number;
        internet.names.enter(&number.namespace(), || Ok(()))?;
        child.connect()?.ping()?;
    }
    Ok(users)
}

/// Whether there are control groups of version 2, without which nobody can be held to anything.
pub(super) fn has_groups() -> bool {
    std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// A snapshot of the native guest, with a network card that it does not look at.
fn take(host: &Host, tag: &Tag, internet: &Internet) -> Result<()> {
    let lease = internet.pool()?.take(1)?.pop().context("there is a network")?;
    let files = guest::Files::write(host.home().context("a home")?)?;
    let boot = BootSpec { tap: Some(Tap::of_network(lease.tap)), ..files.boot_spec() };
    snapshot(SnapshotSpec { boot, ..files.snapshot_spec(tag.clone()) }, &host.dirs, &Silent)?;
    Ok(())
}
