//! Sandboxes that stand still.

use serde_json::{Value, json};

use crate::support::{World, wait_until};

#[test]
fn a_paused_sandbox_says_so_everywhere_until_it_goes_on() {
    let mut world = World::open();
    let [id, other] = [0, 1].map(|_| world.spawn(1).remove(0));
    let path = format!("/v1/sandboxes/{id}");
    let mut events = world.stream("GET", "/v1/events", None);
    events.until("text/event-stream");
    for _ in 0..2 {
        let paused = world.ask("POST", &format!("{path}/pause"), None).expect(200).json();
        assert_eq!((&paused["status"], &paused["id"]), (&json!("paused"), &json!(id)));
    }
    assert!(events.until("sandbox.paused").contains("event:"));
    for (method, route, body) in [
        ("POST", "exec", Some(json!({ "args": ["echo"] }))),
        ("POST", "exec", Some(json!({ "args": ["echo"], "stream": true }))),
        ("POST", "eval", Some(json!({ "code": "1" }))),
        ("POST", "ping", None),
        ("GET", "files?path=/", None),
        ("PUT", "files?path=/x", None),
        ("DELETE", "files?path=/x", None),
        ("GET", "files/stat?path=/", None),
        ("GET", "files/list?path=/", None),
        ("POST", "files/mkdir", Some(json!({ "path": "/x" }))),
        ("POST", "files/move", Some(json!({ "from": "/x", "to": "/y" }))),
        ("GET", "processes", None),
        ("POST", "processes", Some(json!({ "args": ["echo"] }))),
        ("GET", "processes/1", None),
        ("GET", "processes/1/output", None),
        ("POST", "processes/1/stdin", None),
        ("POST", "processes/1/signal", Some(json!({ "signal": 9 }))),
        ("DELETE", "processes/1", None),
    ] {
        let answer = world.ask(method, &format!("{path}/{route}"), body);
        assert_eq!(answer.code(409), "sandbox_paused", "{method} {route}");
    }
    let ids = |world: &World, query: &str| -> Vec<Value> {
        world.get(&format!("/v1/sandboxes{query}")).as_array().unwrap().iter().map(|one| one["id"].clone()).collect()
    };
    assert_eq!(ids(&world, "?status=paused"), [json!(id)]);
    assert_eq!(ids(&world, "?status=running"), [json!(other)]);
    assert_eq!(ids(&world, "").len(), 2);
    world.kill_daemon();
    world.start();
    assert_eq!(ids(&world, "?status=paused"), [json!(id)], "also after a restart");
    let branched = world.post(&format!("{path}/branch"), json!({ "tag": "of-paused" }), 201);
    assert_eq!(branched["status"], "ready");
    let mut events = world.stream("GET", "/v1/events", None);
    events.until("text/event-stream");
    for _ in 0..2 {
        assert_eq!(world.ask("POST", &format!("{path}/resume"), None).expect(200).json()["status"], "running");
    }
    events.until("sandbox.resumed");
    assert_eq!(world.post(&format!("{path}/exec"), json!({ "args": ["echo", "on"] }), 200)["stdout"], "on\n");
    let told = world.stream("GET", "/v1/events?since=0", None).take_until("sandbox.resumed");
    assert_eq!(told.matches("event: sandbox.paused").count(), 1, "nothing is told twice");
    assert_eq!(world.ask("POST", "/v1/sandboxes/sb-0/pause", None).code(404), "sandbox_not_found");
}

#[test]
fn what_others_pause_is_seen() {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    engine::open(&id, &world.dirs).unwrap().pause().unwrap();
    wait_until("it is seen", || world.get("/v1/sandboxes?status=paused")[0]["id"] == json!(id));
    engine::open(&id, &world.dirs).unwrap().resume().unwrap();
    assert_eq!(world.get(&format!("/v1/sandboxes/{id}"))["status"], "running", "at once, when one looks at it");
    world.ask("POST", &format!("/v1/sandboxes/{id}/pause"), None).expect(200);
    world.ask("DELETE", &format!("/v1/sandboxes/{id}"), None).expect(204);
    assert!(world.living().is_empty());
}

#[test]
fn the_paused_sandbox_of_a_workspace_stays_so_and_can_be_suspended() {
    let mut world = World::open();
    let made = world.post("/v1/workspaces", json!({ "name": "w", "snapshot_tag": "base" }), 201);
    let path = format!("/v1/sandboxes/{}", made["live_sandbox_id"].as_str().unwrap());
    world.ask("POST", &format!("{path}/pause"), None).expect(200);
    world.kill_daemon();
    world.start();
    assert_eq!(world.get(&path)["status"], "paused", "somebody wanted it to stand still");
    let put_away = world.post("/v1/workspaces/w/suspend", json!({}), 200);
    assert_eq!(put_away["status"], "suspended");
    assert_eq!(world.ask("POST", "/v1/workspaces/w/resume", None).expect(200).json()["status"], "running");
}
