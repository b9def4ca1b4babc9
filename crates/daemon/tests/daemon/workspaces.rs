//! Workspaces survive their sandboxes, and the daemon.

use serde_json::json;

use crate::support::{World, wait_until};

#[test]
fn a_workspace_is_put_away_and_taken_up() {
    let mut world = World::open();
    let body = json!({ "name": "Mine", "snapshot_tag": "base", "env": { "A": "b" } });
    let made = world.post("/v1/workspaces", body.clone(), 201);
    assert_eq!((&made["status"], &made["source_snapshot_tag"]), (&json!("running"), &json!("base")));
    assert!(made["id"].as_str().unwrap().starts_with("ws-sb-") && made.get("current_state_tag").is_none());
    assert_eq!(world.ask("POST", "/v1/workspaces", Some(body)).code(409), "workspace_exists");
    assert_eq!(world.ask("POST", "/v1/workspaces/Mine/resume", None).code(400), "workspace_running");
    assert_eq!(world.ask("DELETE", "/v1/snapshots/base", None).code(409), "snapshot_in_use");
    let mut tags = Vec::new();
    for _ in 0..2 {
        let put_away = world.post("/v1/workspaces/Mine/suspend", json!({ "diff": false }), 200);
        assert_eq!(put_away["status"], "suspended");
        assert!(put_away.get("live_sandbox_id").is_none() && world.living().is_empty());
        tags.push(put_away["current_state_tag"].as_str().unwrap().to_owned());
        world.kill_daemon();
        world.start();
        assert_eq!(world.get("/v1/workspaces/Mine"), put_away, "it outlives the daemon");
        let resumed = world.ask("POST", "/v1/workspaces/Mine/resume", None).expect(200).json();
        assert_eq!(resumed["status"], "running");
    }
    assert_eq!(tags[0], "ws-Mine-state");
    assert_ne!(tags[0], tags[1], "the old state stays until the new one is there");
    let there: Vec<String> = world
        .get("/v1/snapshots")
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["tag"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(there, ["base", &tags[1]], "and is removed then");
    let path = format!("/v1/snapshots/{}", tags[1]);
    assert_eq!(world.ask("DELETE", &path, None).code(409), "snapshot_in_use");
    world.ask("DELETE", "/v1/workspaces/Mine", None).expect(204);
    assert!(world.living().is_empty());
    assert_eq!(world.get("/v1/snapshots").as_array().unwrap().len(), 1);
    assert_eq!(world.ask("GET", "/v1/workspaces/Mine", None).code(404), "workspace_not_found");
}

/// As a daemon leaves it that is killed while it suspends.
#[test]
fn one_that_stands_still_goes_on_with_the_next_daemon() {
    let mut world = World::open();
    let made = world.post("/v1/workspaces", json!({ "name": "w", "snapshot_tag": "base" }), 201);
    let sandbox = made["live_sandbox_id"].as_str().unwrap();
    let child = engine::open(sandbox, &world.dirs).unwrap();
    child.pause().unwrap();
    world.kill_daemon();
    world.start();
    assert!(!child.is_paused());
    assert_eq!(world.get("/v1/workspaces/w"), made);
    // One that cannot be looked at keeps nobody from starting, and is not taken for dead.
    let record = child.path().join("vm.json");
    let whole = std::fs::read(&record).unwrap();
    world.kill_daemon();
    std::fs::write(&record, "{").unwrap();
    world.start();
    assert_eq!(world.get("/v1/workspaces/w"), made);
    std::fs::write(&record, whole).unwrap();
    world.ask("DELETE", "/v1/workspaces/w", None).expect(204);
    assert!(world.living().is_empty());
}

#[test]
fn one_whose_sandbox_ends_is_stale() {
    let world = World::open();
    let made = world.post("/v1/workspaces", json!({ "name": "w", "snapshot_tag": "base" }), 201);
    let sandbox = made["live_sandbox_id"].as_str().unwrap();
    world.ask("DELETE", &format!("/v1/sandboxes/{sandbox}"), None).expect(204);
    wait_until("it is noticed", || world.get("/v1/workspaces/w")["status"] == "stale");
    assert_eq!(world.ask("POST", "/v1/workspaces/w/suspend", Some(json!({}))).code(400), "workspace_not_running");
    assert_eq!(world.ask("POST", "/v1/workspaces/w/resume", None).code(409), "workspace_state_lost");
    world.ask("DELETE", "/v1/workspaces/w", None).expect(204);
    assert_eq!(
        world.ask("POST", "/v1/workspaces", Some(json!({ "name": "w", "snapshot_tag": "no" }))).code(404),
        "snapshot_not_found"
    );
}

fn tags(world: &World) -> Vec<serde_json::Value> {
    world.get("/v1/snapshots").as_array().unwrap().iter().map(|one| one["tag"].clone()).collect()
}

#[test]
fn a_suspend_that_was_cut_short_leaves_no_state_behind() {
    let mut world = World::open();
    let made = world.post("/v1/workspaces", json!({ "name": "w", "snapshot_tag": "base" }), 201);
    let sandbox = made["live_sandbox_id"].as_str().unwrap();
    // As if the daemon had been killed when the state was in the store and the registry did not know.
    world.kill_daemon();
    world.take_snapshot("ws-w-state");
    engine::open(sandbox, &world.dirs).unwrap().pause().unwrap();
    let sql = "INSERT INTO branches (tag, sandbox, workspace, started_unix) VALUES ('ws-w-state', ?, 'w', 1)";
    world.registry().execute(sql, [sandbox]).unwrap();
    world.start();
    assert_eq!(tags(&world), ["base"]);
    assert_eq!(world.get("/v1/workspaces/w"), made);
    assert_eq!(world.get(&format!("/v1/sandboxes/{sandbox}"))["status"], "running");
    assert!(!engine::open(sandbox, &world.dirs).unwrap().is_paused());
}

#[test]
fn a_state_is_ready_and_the_workspaces_at_the_same_instant_or_never() {
    let world = World::open();
    let made = world.post("/v1/workspaces", json!({ "name": "w", "snapshot_tag": "base" }), 201);
    let sandbox = made["live_sandbox_id"].as_str().unwrap();
    let trigger = "CREATE TRIGGER no BEFORE UPDATE OF state_tag ON workspaces BEGIN SELECT RAISE(ABORT, 'no'); END";
    world.registry().execute_batch(trigger).unwrap();
    let failed = world.ask("POST", "/v1/workspaces/w/suspend", Some(json!({})));
    assert_eq!(failed.code(500), "internal");
    assert_eq!(tags(&world), ["base"], "what is nobody's is not left");
    assert_eq!(world.get("/v1/workspaces/w"), made);
    assert!(!engine::open(sandbox, &world.dirs).unwrap().is_paused());
    world.registry().execute_batch("DROP TRIGGER no").unwrap();
    let put_away = world.post("/v1/workspaces/w/suspend", json!({}), 200);
    assert_eq!(put_away["current_state_tag"], "ws-w-state");
    let told = world.stream("GET", "/v1/events?since=0", None).take_until("workspace.suspended");
    assert_eq!(told.matches("event: snapshot.ready").count(), 1, "and never the one that was not: {told}");
}

#[test]
fn what_fails_after_a_suspend_undoes_nothing_of_it() {
    let world = World::open();
    world.post("/v1/workspaces", json!({ "name": "w", "snapshot_tag": "base" }), 201);
    // From the change on that makes it the state, what is known about the snapshot cannot be read.
    let trigger = "CREATE TRIGGER broken AFTER UPDATE OF state_tag ON workspaces
                   BEGIN UPDATE snapshots SET labels = '{' WHERE tag = NEW.state_tag; END";
    world.registry().execute_batch(trigger).unwrap();
    let put_away = world.post("/v1/workspaces/w/suspend", json!({}), 200);
    assert_eq!((&put_away["status"], &put_away["current_state_tag"]), (&json!("suspended"), &json!("ws-w-state")));
    world.registry().execute_batch("DROP TRIGGER broken; UPDATE snapshots SET labels = '{}'").unwrap();
    assert_eq!(tags(&world), ["base", "ws-w-state"]);
    assert_eq!(world.post("/v1/workspaces/w/resume", json!({}), 200)["status"], "running");
}

#[test]
fn what_is_about_to_be_a_state_cannot_be_removed() {
    let world = World::open();
    world.post("/v1/workspaces", json!({ "name": "w", "snapshot_tag": "base" }), 201);
    world.take_snapshot("ws-w-state");
    let sql = "INSERT INTO branches (tag, sandbox, workspace, started_unix) VALUES ('ws-w-state', 'sb-1', 'w', 1)";
    world.registry().execute(sql, []).unwrap();
    for query in ["", "?force=true", "?cascade=true"] {
        let refused = world.ask("DELETE", &format!("/v1/snapshots/ws-w-state{query}"), None);
        assert_eq!(refused.code(409), "snapshot_in_use", "{query}");
    }
    assert_eq!(tags(&world).len(), 2);
}

#[test]
fn what_a_workspace_is_being_made_of_cannot_be_removed() {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    let pid = world.get(&format!("/v1/sandboxes/{id}"))["pid"].as_i64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let template = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap();
    let template = rustix::process::Pid::from_raw(template).unwrap();
    let signal = |signal| rustix::process::kill_process(template, signal).unwrap();
    signal(rustix::process::Signal::STOP);
    let body = |name: &str| json!({ "name": name, "snapshot_tag": "base" });
    let mut making = world.stream("POST", "/v1/workspaces", Some(body("a")));
    wait_until("its sandbox is begun", || world.homes().len() == 2);
    for query in ["", "?force=true"] {
        assert_eq!(world.ask("DELETE", &format!("/v1/snapshots/base{query}"), None).code(409), "busy", "{query}");
    }
    let mut other = world.stream("POST", "/v1/workspaces", Some(body("b")));
    signal(rustix::process::Signal::CONT);
    making.until("201 Created");
    other.until("201 Created");
    assert_eq!(world.ask("DELETE", "/v1/snapshots/base", None).code(409), "snapshot_in_use");
    world.post("/v1/workspaces/a/suspend", json!({}), 200);
}
