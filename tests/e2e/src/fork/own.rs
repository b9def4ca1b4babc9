//! A place where a test has a template of its own, which it may kill or starve without anybody else noticing.

#![expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use engine::{Lifetime, start_template, stop_template};
use serde_json::Value;
use tempfile::TempDir;
use types::{Dirs, Tag};

use super::Parent;
use super::children::Children;
use crate::host::Host;
use crate::world::{names, vmms_in, wait_until};

/// How long processes and directories may take to be gone.
const TIDY_LIMIT: Duration = Duration::from_secs(30);

/// The place; its template ends with it.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) dirs: Dirs,
    pub(crate) tag: Tag,
    home: TempDir,
}

impl Own {
    /// With the snapshots and images of everybody.
    pub(crate) fn new(host: &Host, parent: Parent) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let dirs = Dirs { run: home.path().join("run"), ..host.dirs.clone() };
        Ok(Self { dirs, tag: host.parent(parent)?, home })
    }

    /// A directory that goes with it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn fork(&self, count: usize) -> Result<Children> {
        Children::fork_in(&self.dirs, &self.tag, count, Lifetime::Connection)
    }

    /// The process of the template, which is started if there is none.
    pub(crate) fn template(&self) -> Result<u32> {
        start_template(&self.tag, &self.dirs)?;
        let record = self.dirs.run.join("templates").join(self.tag.as_str()).join("template.json");
        let record: Value = serde_json::from_slice(&fs::read(record)?)?;
        Ok(u32::try_from(record["pid"].as_u64().context("a process id")?)?)
    }

    /// The directories of children.
    pub(crate) fn homes(&self) -> Vec<String> {
        names(&self.dirs.run.join("vms"))
            .iter()
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name != ".lock")
            .collect()
    }

    /// Waits until no process but these is left, and no child's directory.
    pub(crate) fn only_these_are_left(&self, pids: &[u32]) -> Result<()> {
        let tidy = || vmms_in(&self.dirs.run).iter().all(|pid| pids.contains(pid)) && self.homes().is_empty();
        wait_until("a tidy host", TIDY_LIMIT, tidy)
            .with_context(|| format!("left are {:?} and {:?}", vmms_in(&self.dirs.run), self.homes()))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(error) = stop_template(&self.tag, &self.dirs) {
            eprintln!("the template in {} is left: {error:#}", self.home.path().display());
        }
    }
}

/// Whether a process is there.
pub(crate) fn lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
