//! The daemon is killed at any moment of anything it does, many times over: whatever lived is usable afterwards, and nothing
//! is left that nobody owns.
//!
//! `FORKD_E2E_CRASHES` says how often, `FORKD_E2E_SEED` repeats what a seed gave; timing stays the machine's.

#![expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use engine::Store;
use rusqlite::Connection;
use serde_json::{Value, json};
use types::progress::Silent;

use super::world::World;
use crate::Test;
use crate::branch::Hub;
use crate::host::Host;
use crate::world::{names, wait_until};

/// To be run when nothing else runs: they take all there is, and look at all there is.
pub(crate) const TESTS: &[Test] = &[("native::killed_at_any_moment_it_loses_nothing", killed_at_any_moment)];

const ROUNDS: u64 = 20;
/// How much the daemon does when it is killed.
const DEEDS_AT_ONCE: usize = 3;
/// It has this long at most before it is killed.
const LONGEST_MS: u64 = 120;
const LIMIT: Duration = Duration::from_secs(60);
const WORKSPACE: &str = "/v1/workspaces/w";
/// What the workspace has in its memory and on its disk, and where.
const WORD: &str = "kept";
const PLACE: &str = "1";

/// Numbers that a seed gives.
struct Dice(u64);

impl Dice {
    fn from_env() -> Result<Self> {
        let now = SystemTime::UNIX_EPOCH.elapsed()?.subsec_nanos();
        let seed = number("FORKD_E2E_SEED")?.unwrap_or_else(|| u64::from(now));
        eprintln!("FORKD_E2E_SEED={seed}");
        Ok(Self(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> Result<T> {
        Ok(from[usize::try_from(self.below(u64::try_from(from.len())?))?])
    }
}

fn number(variable: &str) -> Result<Option<u64>> {
    std::env::var(variable).ok().map(|text| text.parse().with_context(|| format!("{variable}={text}"))).transpose()
}

/// What the daemon does when it is killed.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Spawn,
    Stream,
    Branch,
    LiveBranch,
    Suspend,
    Resume,
    Delete,
    RemoveSnapshot,
    Compact,
    Pull,
}

const DEEDS: [Deed; 10] = [
    Deed::Spawn,
    Deed::Stream,
    Deed::Branch,
    Deed::LiveBranch,
    Deed::Suspend,
    Deed::Resume,
    Deed::Delete,
    Deed::RemoveSnapshot,
    Deed::Compact,
    Deed::Pull,
];

impl Deed {
    /// Method, path and body; `round` makes names that were not there before, and `pack` is where one can be pulled.
    fn request(self, round: u64, tag: &str, sandboxes: &[String], pack: &str) -> (&'static str, String, Value) {
        let first = sandboxes.first().map_or("sb-0-0", String::as_str);
        let last = sandboxes.last().map_or("sb-0-0", String::as_str);
        let branch = || format!("/v1/sandboxes/{first}/branch");
        match self {
            Self::Spawn => ("POST", "/v1/sandboxes".into(), json!({ "snapshot_tag": tag, "n": 4 })),
            Self::Stream => {
                ("POST", format!("/v1/sandboxes/{first}/exec"), json!({ "args": ["sleep"], "stream": true }))
            }
            Self::Branch => ("POST", branch(), json!({ "tag": format!("b{round}") })),
            Self::LiveBranch => {
                ("POST", branch(), json!({ "tag": format!("l{round}"), "mode": "live", "wait": false }))
            }
            Self::Suspend => ("POST", format!("{WORKSPACE}/suspend"), json!({})),
            Self::Resume => ("POST", format!("{WORKSPACE}/resume"), json!({})),
            Self::Delete => ("DELETE", format!("/v1/sandboxes/{last}"), Value::Null),
            Self::RemoveSnapshot => {
                ("DELETE", format!("/v1/snapshots/b{}?cascade=true", round.wrapping_sub(1)), Value::Null)
            }
            Self::Compact => ("POST", format!("/v1/snapshots/{tag}/compact"), json!({ "to": format!("c{round}") })),
            Self::Pull => ("POST", "/v1/packs/pull".into(), json!({ "source": pack, "tag": format!("p{round}") })),
        }
    }
}

fn killed_at_any_moment(host: &Host) -> Result<()> {
    let (mut dice, mut world, hub) = (Dice::from_env()?, World::new(host)?, Hub::open()?);
    let workspace = json!({ "name": "w", "snapshot_tag": world.tag });
    let made = world.daemon.expect(201, "POST", "/v1/workspaces", Some(&workspace))?;
    let sandbox = made["live_sandbox_id"].as_str().context("a sandbox")?;
    world.daemon.exec(sandbox, &["remember", PLACE, WORD])?;
    world.daemon.exec(sandbox, &["write", PLACE, WORD])?;
    let push = json!({ "url": hub.url("pack") });
    world.daemon.expect(200, "POST", &format!("/v1/snapshots/{}/push", world.tag), Some(&push))?;
    let (mut cut, mut failed) = (0, 0);
    for round in 0..number("FORKD_E2E_CRASHES")?.unwrap_or(ROUNDS) {
        let free = free_sandboxes(&world)?;
        let deeds = (0..DEEDS_AT_ONCE).map(|_| dice.choose(&DEEDS)).collect::<Result<Vec<_>>>()?;
        let pause = Duration::from_millis(dice.below(LONGEST_MS));
        let under_way = deeds.iter().map(|deed| {
            let (method, path, body) = deed.request(round, &world.tag, &free, &hub.url(&round.to_string()));
            world.daemon.send(method, &path, Some(&body))
        });
        let under_way = under_way.collect::<Result<Vec<_>>>()?;
        std::thread::sleep(pause);
        world.daemon.kill()?;
        drop(under_way);
        let cut_short = branches_under_way(&world)?;
        world.daemon.start_again()?;
        let checked = check(&world).and_then(|()| check_branches(&world, &cut_short));
        failed += checked.with_context(|| format!("round {round}: {deeds:?}, killed after {pause:?}"))?;
        cut += cut_short.len();
    }
    eprintln!("{cut} branches were under way when the daemon was killed; {failed} of them failed");
    clear(&mut world)
}

/// Those that belong to no workspace.
fn free_sandboxes(world: &World) -> Result<Vec<String>> {
    let workspace = world.daemon.expect(200, "GET", WORKSPACE, None)?;
    let kept = workspace["live_sandbox_id"].as_str();
    let mut living = world.living()?;
    living.retain(|id| Some(id.as_str()) != kept);
    Ok(living)
}

fn snapshots(world: &World) -> Result<Vec<Value>> {
    let listed = world.daemon.expect(200, "GET", "/v1/snapshots", None)?;
    Ok(listed.as_array().context("snapshots")?.clone())
}

/// Everything that lives is known and answers, and everything that is known is whole.
fn check(world: &World) -> Result<()> {
    let daemon = &world.daemon;
    let listed = daemon.expect(200, "GET", "/v1/sandboxes?limit=1000", None)?;
    let ids = listed.as_array().context("sandboxes")?.iter().filter_map(|one| one["id"].as_str());
    let ids: BTreeSet<String> = ids.map(ToOwned::to_owned).collect();
    let living: BTreeSet<String> = world.living()?.into_iter().collect();
    ensure!(ids == living, "known are {ids:?}, alive are {living:?}");
    ensure!(ids == world.homes(), "known are {ids:?}, directories have {:?}", world.homes());
    for id in &ids {
        ensure!(daemon.exec(id, &["hostname"])? == *id, "{id} is somebody else");
    }
    // One that was being written when the daemon was killed is failed by now; others may be under way.
    let written = || snapshots(world).is_ok_and(|all| all.iter().all(|one| one["status"] != "writing"));
    wait_until("the end of all writing", LIMIT, written)?;
    for one in snapshots(world)?.iter().filter(|one| one["status"] == "ready") {
        let copies = daemon.spawn(one["tag"].as_str().context("a tag")?, 1)?;
        ensure!(daemon.exec(&copies[0], &["hostname"])? == copies[0], "{one}");
        world.delete_all(&copies)?;
    }
    check_workspace(world, &ids)?;
    let verified = Store::new(&world.host.dirs).verify(&[], &Silent)?;
    ensure!(verified.findings.is_empty(), "{verified:?}");
    daemon.expect(200, "DELETE", "/v1/store/garbage", None)?;
    ensure!(left_overs(world).is_empty(), "{:?}", left_overs(world));
    Ok(())
}

/// The workspace has what it had, whether it runs or not.
fn check_workspace(world: &World, living: &BTreeSet<String>) -> Result<()> {
    let daemon = &world.daemon;
    let workspace = daemon.expect(200, "GET", WORKSPACE, None)?;
    let has_all = |id: &str| -> Result<()> {
        let found = [daemon.exec(id, &["recall", PLACE])?, daemon.exec(id, &["read", PLACE])?];
        ensure!(found == [WORD, WORD], "{workspace} has {found:?}");
        Ok(())
    };
    match (workspace["status"].as_str(), &workspace["live_sandbox_id"], &workspace["current_state_tag"]) {
        (Some("running"), Value::String(id), _) if living.contains(id) => has_all(id),
        (Some("suspended"), _, Value::String(tag)) => {
            let copies = daemon.spawn(tag, 1)?;
            has_all(&copies[0])?;
            world.delete_all(&copies)
        }
        _ => bail!("the workspace is {workspace}"),
    }
}

fn registry(world: &World) -> Result<Connection> {
    Ok(Connection::open(world.daemon.registry())?)
}

/// The tags of branches for nobody's state that nobody has said the end of, as the registry of a killed daemon has them.
fn branches_under_way(world: &World) -> Result<Vec<String>> {
    let registry = registry(world)?;
    let whole: String = registry.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    ensure!(whole == "ok", "the registry: {whole}");
    let mut statement = registry.prepare("SELECT tag FROM branches WHERE failed IS NULL AND workspace IS NULL")?;
    Ok(statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
}

/// Each of them is there, or said to have failed and why; how many have. Nobody waits for any of them any more.
fn check_branches(world: &World, cut_short: &[String]) -> Result<usize> {
    let (all, mut failed) = (snapshots(world)?, 0);
    for tag in cut_short {
        let found = all.iter().find(|one| one["tag"] == **tag).with_context(|| format!("`{tag}` is not spoken of"))?;
        match (found["status"].as_str(), &found["warning"]) {
            (Some("ready"), _) => {}
            (Some("failed"), Value::String(_)) => failed += 1,
            _ => bail!("the branch is {found}"),
        }
    }
    ensure!(branches_under_way(world)?.is_empty(), "some are still said to be under way");
    Ok(failed)
}

/// What somebody staged or downloaded and did not finish.
fn left_overs(world: &World) -> Vec<String> {
    let dirs = [world.host.dirs.data.join("snapshots"), world.host.dirs.cache.join("packs")];
    let names = dirs.iter().flat_map(|dir| names(dir)).map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".staging-") || name.contains(".part")).collect()
}

/// Removes all of it by its names, and looks for what is left.
fn clear(world: &mut World) -> Result<()> {
    let daemon = &world.daemon;
    daemon.expect(204, "DELETE", WORKSPACE, None)?;
    world.delete_all(&world.living()?)?;
    for one in snapshots(world)? {
        // One may have gone with another that it was made of.
        let path = format!("/v1/snapshots/{}?force=true", one["tag"].as_str().context("a tag")?);
        let (status, answer) = daemon.ask("DELETE", &path, None)?;
        ensure!([204, 404].contains(&status), "{path}: {status}: {answer}");
    }
    ensure!(snapshots(world)?.is_empty());
    world.daemon.stop()?;
    ensure!(world.homes().is_empty(), "{:?}", world.homes());
    wait_until("the end of every process", LIMIT, || world.holders().is_empty())
}
