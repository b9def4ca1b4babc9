//! A home with one snapshot and a daemon over it; with this ends all that was made in it.

#![expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use engine::{kill_many, list, stop_template};

use crate::fork::Parent;
use crate::host::Host;
use crate::serving::Daemon;
use crate::world::names;

pub(super) struct World {
    pub(super) host: Host,
    pub(super) daemon: Daemon,
    /// The snapshot.
    pub(super) tag: String,
}

impl World {
    pub(super) fn new(host: &Host) -> Result<Self> {
        let host = host.with_own_home()?;
        let tag = host.parent(Parent::Native)?.to_string();
        let daemon = Daemon::start(&host)?;
        Ok(Self { host, daemon, tag })
    }

    /// The ids of all that the engine sees living.
    pub(super) fn living(&self) -> Result<Vec<String>> {
        Ok(list(&self.host.dirs)?.iter().map(|child| child.id().to_owned()).collect())
    }

    /// The names of all directories that sandboxes live in, or lived.
    pub(super) fn homes(&self) -> BTreeSet<String> {
        let names = names(&self.host.dirs.run.join("vms")).into_iter().filter_map(|name| name.into_string().ok());
        names.filter(|name| name != ".lock").collect()
    }

    /// Ends sandboxes, several at a time.
    pub(super) fn delete_all(&self, ids: &[String]) -> Result<()> {
        let delete = |id: &String| self.daemon.expect(204, "DELETE", &format!("/v1/sandboxes/{id}"), None).map(drop);
        std::thread::scope(|scope| {
            let parts = ids.chunks(ids.len().div_ceil(8).max(1));
            let workers: Vec<_> = parts.map(|part| scope.spawn(|| part.iter().try_for_each(delete))).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("it does not panic"))
        })
    }

    /// Processes that have something below the home open.
    pub(super) fn holders(&self) -> Vec<String> {
        let home = self.host.home();
        let within = |path: &PathBuf| home.is_some_and(|home| path.starts_with(home));
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter(|one| one.file_name() != "self");
        let holds = |process: &fs::DirEntry| {
            let open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
            open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|path| within(&path))
        };
        processes.filter(holds).filter_map(|process| process.file_name().into_string().ok()).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Nobody makes anything any more.
        drop(self.daemon.kill());
        let dirs = &self.host.dirs;
        for error in kill_many(&list(dirs).unwrap_or_default()).into_iter().filter_map(Result::err) {
            eprintln!("a sandbox may be left: {error}");
        }
        let templates = names(&dirs.run.join("templates"));
        for tag in templates.iter().filter_map(|name| name.to_str()?.parse().ok()) {
            if let Err(error) = stop_template(&tag, dirs) {
                eprintln!("a template may be left: {error}");
            }
        }
    }
}
