//! As many vCPUs as a VM can have.

use std::time::Duration;

use anyhow::{Result, ensure};
use engine::{Existing, Lifetime, Removal, SnapshotSpec, remove_snapshot, snapshot};
use types::progress::Silent;
use types::{Tag, VcpuCount};

use super::children::{Children, Run};
use crate::Test;
use crate::branch::torn::is_whole;
use crate::host::{Host, argv};
use crate::world::wait_until;

pub(crate) const NATIVE_TESTS: &[Test] = &[("fork::all_vcpus_of_many_run", all_vcpus_of_many_run)];

const LIMIT: Duration = Duration::from_secs(60);

/// In a child, each after the one before it has woken it.
fn all_vcpus_of_many_run(host: &Host) -> Result<()> {
    let tag: Tag = "e2e-most-vcpus".parse()?;
    let mut spec = host.native_files()?.snapshot_spec(tag.clone());
    spec.boot.vcpus = u32::from(VcpuCount::MAX).try_into()?;
    snapshot(SnapshotSpec { existing: Existing::Replace, ..spec }, &host.dirs, &Silent)?;
    let children = Children::fork_in(&host.dirs, &tag, 1, Lifetime::Connection)?;
    ensure!(children[0].run(&["nproc"])? == VcpuCount::MAX.to_string());
    let _toil = children[0].exec(&argv(&["toil"]))?;
    wait_until("a round of every CPU", LIMIT, || is_whole(&children[0]).is_ok_and(|rounds| rounds > 0))?;
    drop(children);
    remove_snapshot(&tag, Removal::Force, &host.dirs)?;
    Ok(())
}
