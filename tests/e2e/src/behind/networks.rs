//! The networks of sandboxes behind the daemon: what it tells of them, changes on them, and finds again.

use std::fs;
use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use engine::Egress;
use serde_json::{Value, json};

use super::{TAG, World, path};
use crate::egress::try_to_reach;
use crate::host::Sh;
use crate::internet::{ONE, OTHER};
use crate::serving::PATIENCE;
use crate::world::wait_until;

/// Holds a connection open, and says something on it once it is told to.
const TALK: &str = "exec 3<>/dev/tcp/198.51.100.8/80; head -c 5 <&3 > /run/up; until [ -e /run/go ]; do sleep 0.1; done; \
    echo again >&3; head -c 5 <&3 > /run/said";

impl World {
    fn sh(&self, id: &str, script: &str) -> Result<String> {
        self.daemon.exec(id, &["sh", "-c", script])
    }

    /// Which of the two servers a sandbox reaches.
    fn reached(&self, id: &str) -> Result<Vec<String>> {
        Ok(self.sh(id, &try_to_reach(&[(ONE, 80), (OTHER, 80)]))?.lines().map(String::from).collect())
    }

    fn network(&self, id: &str) -> Result<Value> {
        self.get(&format!("{}/net", path(id)))
    }
}

fn greets(address: Ipv4Addr) -> Vec<String> {
    vec![format!("{address}/80")]
}

fn policy(network: &Value) -> Result<Egress> {
    Ok(network["egress"].as_str().context("a policy")?.parse()?)
}

/// Whether a network says that somebody tried to reach the other server.
fn tells_of_attempt(network: &Value) -> bool {
    let other = json!(OTHER.to_string());
    let attempts = network["attempts"].as_array().into_iter().flatten();
    attempts.into_iter().any(|it| (&it["address"], &it["port"], &it["protocol"]) == (&other, &json!(80), &json!(6)))
}

/// Two sandboxes: one may reach what its snapshot says, one what it was spawned with. The answer is their names.
pub(super) fn each_has_its_own(world: &World) -> Result<[String; 2]> {
    let one = world.daemon.spawn(TAG, 1)?.remove(0);
    let words = ["spawn", "--tag", TAG, "--egress", "none", "--connections", "7", "--json"];
    let spawned: Value = serde_json::from_str(&world.forkd(&words)?)?;
    let other = spawned[0]["id"].as_str().context("an id")?.to_owned();
    for address in [ONE, OTHER] {
        world.internet.greet(address, 80)?;
    }
    let (network, closed) = (world.network(&one)?, world.network(&other)?);
    for (id, network) in [(&one, &network), (&other, &closed)] {
        let shown = world.get(&path(id))?;
        let own = network["netns"].as_str().is_some_and(|name| name.starts_with("forkd-child-"));
        ensure!(own && shown["netns"] == network["netns"], "{shown}: {network}");
    }
    ensure!(network["netns"] != closed["netns"], "both are in {}", network["netns"]);
    ensure!(policy(&network)? == format!("{ONE}:80").parse()?, "what its snapshot says: {network}");
    ensure!(policy(&closed)? == Egress::None && closed["limits"]["connections"] == 7, "what was asked for: {closed}");
    ensure!(world.reached(&one)? == greets(ONE) && world.reached(&other)?.is_empty());
    ensure!(world.sh(&one, "getent hosts secret.example || echo no")? == "no");
    is_told(world, &one)?;
    // From the next packet on.
    world.forkd(&["net", &one, "--egress", &format!("{OTHER}:80")])?;
    ensure!(world.reached(&one)? == greets(OTHER), "it reaches {:?}", world.reached(&one)?);
    Ok([one, other])
}

/// What a sandbox was refused is told by the API, by the command line, and by the audit log.
fn is_told(world: &World, id: &str) -> Result<()> {
    let network = world.network(id)?;
    let counted = |what: &str| network[what]["packets"].as_u64().unwrap_or_default();
    ensure!(["sent", "received", "denied"].into_iter().all(|what| counted(what) > 0), "{network}");
    ensure!(tells_of_attempt(&network), "{network}");
    let names = network["names"]["last_refused"].as_array().context("names")?;
    ensure!(names.contains(&json!("secret.example")), "{network}");
    let shown: Value = serde_json::from_str(&world.forkd(&["net", id, "--json"])?)?;
    ensure!(tells_of_attempt(&shown) && shown["netns"] == network["netns"], "{shown}");
    let shown = world.forkd(&["net", id])?;
    ensure!(shown.contains(&format!("tcp {OTHER}:80")), "{shown}");
    let denial = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        let of = (&line["event"], &line["sandbox"], &line["address"], &line["port"]);
        of == (&json!("egress_denied"), &json!(id), &json!(OTHER.to_string()), &json!(80))
    };
    wait_until("the audit log has it", PATIENCE, || {
        fs::read_to_string(world.daemon.audit_log()).is_ok_and(|log| log.lines().any(denial))
    })
}

/// What a sandbox may reach stays as it is while nobody looks after it, and the next daemon does.
pub(super) fn a_killed_daemon_changes_nothing(world: &mut World, id: &str) -> Result<()> {
    let talk = json!({ "args": ["bash", "-c", TALK] });
    world.daemon.expect(201, "POST", &format!("{}/processes", path(id)), Some(&talk))?;
    wait_until("it talks", PATIENCE, || world.sh(id, "cat /run/up").is_ok_and(|said| said == "hello"))?;
    let before = world.network(id)?;
    world.daemon.kill()?;
    let child = engine::open(id, &world.host.dirs)?;
    let places = [(ONE, 80), (OTHER, 80)];
    ensure!(child.sh(&try_to_reach(&places))? == format!("{OTHER}/80"), "nobody is needed for it");
    world.daemon.start_again()?;
    world.sh(id, "touch /run/go")?;
    wait_until("it goes on talking", PATIENCE, || world.sh(id, "cat /run/said").is_ok_and(|said| said == "again"))?;
    ensure!(world.reached(id)? == greets(OTHER));
    ensure!(world.sh(id, "getent hosts later.example || echo no")? == "no");
    let after = world.network(id)?;
    ensure!(["netns", "egress", "host_side_addr"].into_iter().all(|what| after[what] == before[what]), "{after}");
    let denied = |network: &Value| network["denied"]["packets"].as_u64();
    // Counted while nobody looked, and since.
    ensure!(denied(&after) >= denied(&before).map(|packets| packets + 2), "{before}, then {after}");
    ensure!(tells_of_attempt(&after), "{after}");
    let names = after["names"]["last_refused"].as_array().context("names")?;
    ensure!(names.contains(&json!("later.example")), "its questions are heard: {after}");
    let nothing = json!({ "egress": "none", "limits": { "connections": 9 } });
    let changed = world.daemon.expect(200, "PUT", &format!("{}/egress", path(id)), Some(&nothing))?;
    ensure!(policy(&changed)? == Egress::None && changed["limits"]["connections"] == 9, "{changed}");
    ensure!(world.reached(id)?.is_empty(), "it is closed");
    Ok(())
}
