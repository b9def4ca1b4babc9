//! What sandboxes are given over REST reaches each of them, and only the one that it is for.

use anyhow::{Result, ensure};
use serde_json::json;

use super::world::World;
use crate::Test;
use crate::host::Host;

pub(crate) const TESTS: &[Test] = &[("native::each_has_its_own_environment", each_has_its_own_environment)];

fn each_has_its_own_environment(host: &Host) -> Result<()> {
    let world = World::new(host)?;
    let body = json!({ "snapshot_tag": world.tag, "n": 2, "env": { "A": "all", "B": "both" }, "per_child_netns": true,
                       "per_child": [{}, { "env": { "A": "own" } }] });
    let made = world.daemon.expect(201, "POST", "/v1/sandboxes", Some(&body))?;
    for (n, expected) in ["all", "own"].into_iter().enumerate() {
        let id = made[n]["id"].as_str().unwrap_or_default();
        ensure!(world.daemon.exec(id, &["printenv", "A"])? == expected, "{made}");
        ensure!(world.daemon.exec(id, &["printenv", "B"])? == "both", "{made}");
    }
    Ok(())
}
