//! The daemon is killed at any moment of anything it does, many times over: whatever lived is usable afterwards, and nothing
//! is left that nobody owns.
//!
//! `FORKD_CRASH_ROUNDS` says how often, `FORKD_CRASH_SEED` repeats what a seed gave; timing stays the machine's.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use store::Store;
use types::progress::Silent;

use crate::http::{exchange, request, unix};
use crate::packs::{PIECE, packed, server};
use crate::support::{World, wait_until};

const ROUNDS: u64 = 20;
/// The daemon has this long at most before it is killed.
const LONGEST_MS: u64 = 60;

/// Numbers that a seed gives.
struct Dice(u64);

impl Dice {
    fn from_env() -> Self {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        let seed = number("FORKD_CRASH_SEED").unwrap_or_else(|| u64::from(now));
        println!("FORKD_CRASH_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is {text}")))
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
    /// The request; `round` makes names that were not there before, and `server` has a pack.
    fn request(self, round: u64, sandboxes: &[String], server: &str) -> String {
        let first = sandboxes.first().map_or("sb-0-0", String::as_str);
        let last = sandboxes.last().map_or("sb-0-0", String::as_str);
        let (method, path, body) = match self {
            Self::Spawn => ("POST", "/v1/sandboxes".into(), json!({ "snapshot_tag": "base", "n": 4 })),
            Self::Stream => {
                ("POST", format!("/v1/sandboxes/{first}/exec"), json!({ "args": ["sleep"], "stream": true }))
            }
            Self::Branch => ("POST", format!("/v1/sandboxes/{first}/branch"), json!({ "tag": format!("b{round}") })),
            Self::LiveBranch => (
                "POST",
                format!("/v1/sandboxes/{first}/branch"),
                json!({ "tag": format!("l{round}"), "mode": "live", "wait": false }),
            ),
            Self::Suspend => ("POST", "/v1/workspaces/w/suspend".into(), json!({})),
            Self::Resume => ("POST", "/v1/workspaces/w/resume".into(), json!({})),
            Self::Delete => ("DELETE", format!("/v1/sandboxes/{last}"), Value::Null),
            Self::RemoveSnapshot => {
                ("DELETE", format!("/v1/snapshots/b{}?cascade=true", round.wrapping_sub(1)), Value::Null)
            }
            Self::Compact => ("POST", "/v1/snapshots/base/compact".into(), json!({ "to": format!("c{round}") })),
            Self::Pull => (
                "POST",
                "/v1/packs/pull".into(),
                json!({ "source": format!("{server}/{round}"), "tag": format!("p{round}") }),
            ),
        };
        request(method, &path, &[("content-type", "application/json")], Some(&body.to_string()))
    }
}

#[test]
fn killed_at_any_moment_it_loses_nothing_and_leaves_nothing() {
    let mut dice = Dice::from_env();
    let mut world = World::open();
    world.post("/v1/workspaces", json!({ "name": "w", "snapshot_tag": "base" }), 201);
    let server = server(packed(&world), PIECE);
    for round in 0..number("FORKD_CRASH_ROUNDS").unwrap_or(ROUNDS) {
        let free = free_sandboxes(&world);
        let deeds: Vec<Deed> = (0..3).map(|_| DEEDS[usize::try_from(dice.below(10)).unwrap()]).collect();
        println!("round {round}: {deeds:?}");
        let under_way: Vec<_> = deeds
            .iter()
            .map(|deed| {
                let mut stream = unix(&world.socket());
                stream.write_all(deed.request(round, &free, &server).as_bytes()).unwrap();
                stream
            })
            .collect();
        std::thread::sleep(Duration::from_millis(dice.below(LONGEST_MS)));
        world.kill_daemon();
        drop(under_way);
        world.start();
        check(&world);
    }
    clear(&mut world);
}

/// Those that belong to no workspace.
fn free_sandboxes(world: &World) -> Vec<String> {
    let kept = world.get("/v1/workspaces")[0]["live_sandbox_id"].as_str().map(str::to_owned);
    let mut living = world.living();
    living.retain(|id| Some(id) != kept.as_ref());
    living
}

/// Everything that lives is known and answers, and everything that is known is whole.
fn check(world: &World) {
    let listed: BTreeSet<String> = world
        .get("/v1/sandboxes")
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(listed, world.living().into_iter().collect(), "what is known is what lives");
    assert_eq!(listed, world.homes(), "nothing else has a directory");
    for id in &listed {
        let ran = world.post(&format!("/v1/sandboxes/{id}/exec"), json!({ "args": ["echo", id] }), 200);
        assert_eq!(ran["stdout"], format!("{id}\n"));
    }
    // A branch that was taken goes on being written without the daemon.
    let writing = |one: &Value| one["status"] == "writing";
    wait_until("the end of all writing", || !world.get("/v1/snapshots").as_array().unwrap().iter().any(writing));
    for one in world.get("/v1/snapshots").as_array().unwrap() {
        let tag = one["tag"].as_str().unwrap();
        if one["status"] == "ready" {
            let made = world.post("/v1/sandboxes", json!({ "snapshot_tag": tag }), 201);
            world.ask("DELETE", &format!("/v1/sandboxes/{}", made[0]["id"].as_str().unwrap()), None).expect(204);
        }
    }
    let workspace = world.get("/v1/workspaces/w");
    match workspace["status"].as_str().unwrap() {
        "running" => assert!(listed.contains(workspace["live_sandbox_id"].as_str().unwrap()), "{workspace}"),
        "suspended" => assert!(workspace["current_state_tag"].is_string(), "{workspace}"),
        other => panic!("a workspace is {other}"),
    }
    let verified = Store::new(&world.dirs).verify(&[], &Silent).unwrap();
    assert!(verified.findings.is_empty(), "{verified:?}");
    world.ask("DELETE", "/v1/store/garbage", None).expect(200);
    assert_eq!(left_overs(world), Vec::<String>::new());
}

/// What somebody staged or downloaded and did not finish.
fn left_overs(world: &World) -> Vec<String> {
    let dirs = [world.dirs.data.join("snapshots"), world.dirs.cache.join("packs")];
    let names = dirs.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".staging-") || name.contains(".part")).collect()
}

/// Removes all of it by its names, and looks for what is left.
fn clear(world: &mut World) {
    world.ask("DELETE", "/v1/workspaces/w", None).expect(204);
    for id in world.living() {
        world.ask("DELETE", &format!("/v1/sandboxes/{id}"), None).expect(204);
    }
    let snapshots = world.get("/v1/snapshots");
    for one in snapshots.as_array().unwrap() {
        let path = format!("/v1/snapshots/{}?force=true", one["tag"].as_str().unwrap());
        let text = request("DELETE", &path, &[], None);
        assert!([204, 404].contains(&exchange(unix(&world.socket()), text.as_bytes()).unwrap().status), "{path}");
    }
    assert_eq!(world.get("/v1/snapshots"), json!([]));
    assert_eq!(world.stop_daemon(), Some(0));
    assert_eq!(world.homes(), BTreeSet::new());
    wait_until("the end of every process", || holders(world.home.path()).is_empty());
}

/// Processes that have something below `home` open.
fn holders(home: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten().filter(|one| one.file_name() != "self");
    let holds = |process: &fs::DirEntry| {
        let open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|target| target.starts_with(home))
    };
    processes.filter(holds).map(|process| process.file_name().into_string().unwrap()).collect()
}
