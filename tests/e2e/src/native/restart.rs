//! The host is switched off and on: a workspace that was suspended is as it was, memory and disk, and what ran is gone.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::world::World;
use crate::Test;
use crate::faults::signal;
use crate::host::Host;
use crate::world::{vmms_in, wait_until};

pub(crate) const TESTS: &[Test] = &[("native::a_workspace_survives_the_host", a_workspace_survives_the_host)];

const LIMIT: Duration = Duration::from_secs(60);
const WORKSPACE: &str = "/v1/workspaces/w";

fn a_workspace_survives_the_host(host: &Host) -> Result<()> {
    let mut world = World::new(host)?;
    let body = json!({ "name": "w", "snapshot_tag": world.tag });
    let made = world.daemon.expect(201, "POST", "/v1/workspaces", Some(&body))?;
    let sandbox = made["live_sandbox_id"].as_str().context("a sandbox")?;
    world.daemon.exec(sandbox, &["remember", "1", "remembered"])?;
    world.daemon.exec(sandbox, &["write", "1", "written"])?;
    let put_away = world.daemon.expect(200, "POST", &format!("{WORKSPACE}/suspend"), Some(&json!({})))?;
    let lost = world.daemon.spawn(&world.tag, 1)?.remove(0);

    switch_off_and_on(&mut world)?;

    let found = world.daemon.expect(200, "GET", WORKSPACE, None)?;
    ensure!(found == put_away, "{found} was {put_away}");
    let gone = world.daemon.expect(200, "GET", &format!("/v1/sandboxes/{lost}"), None)?;
    ensure!(gone["status"] == "gone" && gone["reason"].is_string(), "{gone}");
    let resumed = world.daemon.expect(200, "POST", &format!("{WORKSPACE}/resume"), None)?;
    let sandbox = resumed["live_sandbox_id"].as_str().context("a sandbox")?;
    ensure!(world.daemon.exec(sandbox, &["recall", "1"])? == "remembered");
    ensure!(world.daemon.exec(sandbox, &["read", "1"])? == "written");
    Ok(())
}

/// As far as forkd can tell: no process is left, and nothing of what lies in memory.
fn switch_off_and_on(world: &mut World) -> Result<()> {
    let run = world.host.dirs.run.clone();
    world.daemon.kill()?;
    let vmms = vmms_in(&run);
    ensure!(!vmms.is_empty(), "templates and VMs run");
    vmms.into_iter().try_for_each(|pid| signal(pid, Signal::KILL))?;
    wait_until("the end of all of them", LIMIT, || vmms_in(&run).is_empty())?;
    fs::remove_dir_all(&run)?;
    world.daemon.start_again()
}
