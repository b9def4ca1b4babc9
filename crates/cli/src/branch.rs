//! `forkd snapshot --from-sandbox`: a snapshot of a sandbox that runs on.

use std::process::ExitCode;

use api::{BranchMode, BranchSandbox, SnapshotInfo, SnapshotStatus};
use clap::Args;
use client::{Client, ClientError, path};
use serde::Serialize;
use types::Tag;

use crate::daemon::DaemonArgs;
use crate::interrupts::Interrupts;
use crate::output::Shown;
use crate::table::bytes;
use crate::{progress, sandbox, stream};

/// What is asked about a branch.
#[derive(Clone, Debug, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line and stands by itself")]
pub(crate) struct BranchArgs {
    /// Takes a sandbox as it is now, instead of booting a VM; it runs on after a pause of milliseconds
    #[arg(long, value_name = "ID", conflicts_with_all = ["force", "recipe", "kernel", "initramfs", "image", "extra"])]
    pub(crate) from_sandbox: Option<String>,
    /// Stores what differs from the snapshot the sandbox was forked from (this is what is done unless you say --full)
    #[arg(long, requires = "from_sandbox")]
    diff: bool,
    /// The same: every branch is taken while the sandbox runs
    #[arg(long, requires = "from_sandbox", conflicts_with = "diff")]
    live: bool,
    /// Stores all of it, so that it needs no other snapshot
    #[arg(long, requires = "from_sandbox", conflicts_with_all = ["diff", "live"])]
    full: bool,
    /// Returns when the sandbox runs on; the snapshot can be forked at once and is written in the background
    #[arg(long, requires = "from_sandbox")]
    no_wait: bool,
}

/// What is told of a branch, in the words of the published interface.
#[derive(Debug, PartialEq, Serialize)]
struct Told {
    tag: String,
    dir: String,
    branched_from: Option<String>,
    status: SnapshotStatus,
    pause_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diff_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diff_physical_bytes: Option<u64>,
}

impl From<SnapshotInfo> for Told {
    fn from(info: SnapshotInfo) -> Self {
        Self {
            tag: info.tag,
            dir: info.dir,
            branched_from: info.branched_from,
            status: info.status,
            pause_ms: info.pause_ms.unwrap_or_default(),
            memory_bytes: info.memory_own_bytes,
            disk_bytes: info.disk_own_bytes,
            diff_ms: info.diff_ms,
            diff_physical_bytes: info.diff_physical_bytes,
        }
    }
}

impl Told {
    fn text(&self) -> String {
        let Self { tag, dir, pause_ms, .. } = self;
        let from = self.branched_from.as_deref().unwrap_or("-");
        let status = self.status.as_str();
        let mut text = format!("tag: {tag}\ndir: {dir}\nbranched_from: {from}\nstatus: {status}");
        text += &format!("\npause_ms: {pause_ms:.3}");
        if let (Some(memory), Some(disk)) = (self.memory_bytes, self.disk_bytes) {
            text += &format!("\nstored: {} of memory, {} of disk", bytes(memory), bytes(disk));
        }
        text
    }
}

impl BranchArgs {
    /// Branches the sandbox with this id.
    pub(crate) fn run(
        &self,
        id: &str,
        tag: Option<&Tag>,
        daemon: &DaemonArgs,
        shown: Shown,
    ) -> anyhow::Result<ExitCode> {
        let client = daemon.running()?.ok_or_else(|| sandbox::none(id))?;
        let id = sandbox::find(&client, id)?;
        let asked = self.asked(tag);
        let interrupts = Interrupts::catch()?;
        let stage = progress::reporter(false).stage("Writing the branch", None);
        let branched = interrupts.unless(move || take(&client, &id, &asked))?;
        drop(stage);
        let Some(branched) = branched else {
            eprintln!("forkd: interrupted; the branch is written on, and `forkd images` tells when it is ready");
            return Ok(interrupts.fatal().map_or(ExitCode::FAILURE, stream::killed_by));
        };
        let told = Told::from(branched?);
        shown.line(&told, || told.text())?;
        Ok(ExitCode::SUCCESS)
    }

    /// How it is called only matters for what is told; a diff is told when it is written, so somebody has to wait for it.
    const fn mode(&self) -> BranchMode {
        match (self.full, self.diff && !self.no_wait) {
            (true, _) => BranchMode::Full,
            (false, true) => BranchMode::Diff,
            (false, false) => BranchMode::Live,
        }
    }

    fn asked(&self, tag: Option<&Tag>) -> BranchSandbox {
        BranchSandbox {
            tag: tag.map(ToString::to_string),
            mode: Some(self.mode()),
            wait: !self.no_wait,
            ..BranchSandbox::default()
        }
    }
}

/// Takes a branch of a sandbox.
pub(crate) fn take(client: &Client, id: &str, asked: &BranchSandbox) -> Result<SnapshotInfo, ClientError> {
    client.post(&path(&["sandboxes", id, "branch"], &[]), asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_the_published_clients_read() {
        let told = Told {
            tag: "b".into(),
            dir: "/d/b".into(),
            branched_from: Some("sb-1".into()),
            status: SnapshotStatus::Ready,
            pause_ms: 1.5,
            memory_bytes: Some(8192),
            disk_bytes: Some(0),
            diff_ms: Some(2.5),
            diff_physical_bytes: None,
        };
        let text = told.text();
        assert!(text.starts_with("tag: b\ndir: /d/b\nbranched_from: sb-1\nstatus: ready\npause_ms: 1.500\n"), "{text}");
        let json = serde_json::to_value(&told).unwrap();
        assert_eq!(
            (&json["status"], &json["diff_ms"], json.get("diff_physical_bytes")),
            (&"ready".into(), &2.5.into(), None)
        );
    }

    #[test]
    fn a_diff_is_asked_for_as_one_unless_nobody_waits() {
        let mode = |diff, full, no_wait| BranchArgs { diff, full, no_wait, ..BranchArgs::default() }.mode();
        assert_eq!(mode(true, false, false), BranchMode::Diff);
        assert_eq!(mode(true, false, true), BranchMode::Live);
        assert_eq!((mode(false, false, false), mode(false, true, true)), (BranchMode::Live, BranchMode::Full));
    }
}
