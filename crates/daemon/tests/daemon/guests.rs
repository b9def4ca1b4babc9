//! Guests that do not answer, and clients that do not wait.

use std::io::Write as _;

use serde_json::json;

use crate::http::{request, unix};
use crate::support::{World, holds, wait_until};

/// Asks, and leaves as soon as the daemon is at it.
fn ask_and_leave(world: &World, path: &str, body: &serde_json::Value) {
    let text = request("POST", path, &[("content-type", "application/json")], Some(&body.to_string()));
    let mut stream = unix(&world.socket());
    stream.write_all(text.as_bytes()).unwrap();
    wait_until("it is asked", || world.guest_threads() > 0);
    drop(stream);
}

#[test]
fn a_guest_that_hangs_is_left_with_its_client() {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    let audit = world.dirs.data.join("audit.log");
    for (route, body) in [
        ("exec", json!({ "args": ["hang"] })),
        ("exec", json!({ "args": ["hang"], "stdin": "x".repeat(1 << 20) })),
        ("eval", json!({ "code": "hang" })),
    ] {
        ask_and_leave(&world, &format!("/v1/sandboxes/{id}/{route}"), &body);
        wait_until("nobody waits", || world.guest_threads() == 0);
    }
    let body = json!({ "args": ["hang"], "stream": true });
    world.stream("POST", &format!("/v1/sandboxes/{id}/exec"), Some(body)).until("event: started");
    wait_until("nobody waits", || world.guest_threads() == 0);
    let lines = || std::fs::read_to_string(&audit).unwrap();
    wait_until("the audit lines", || lines().matches(r#""status":499"#).count() == 3);
    let left = lines().lines().find(|line| line.contains("/eval")).unwrap().to_owned();
    assert!(left.contains(&id) && left.contains(r#""actor":"local""#), "{left}");
    assert!(holds(&audit, r#""status":200"#), "what streamed had been answered");
    assert_eq!(world.post(&format!("/v1/sandboxes/{id}/exec"), json!({ "args": ["echo"] }), 200)["exit_code"], 0);
}

#[test]
fn one_sandbox_that_hangs_takes_not_all_the_room() {
    let world = World::open();
    let [hung, other] = [0, 1].map(|_| world.spawn(1).remove(0));
    let path = format!("/v1/sandboxes/{hung}/exec");
    let waiting: Vec<_> =
        (0..256).map(|_| world.stream("POST", &path, Some(json!({ "args": ["hang"], "timeout_secs": 600 })))).collect();
    wait_until("all wait", || world.guest_threads() == 256);
    let refused = world.ask("POST", &path, Some(json!({ "args": ["echo"] })));
    assert_eq!(refused.code(503), "overloaded");
    assert_eq!(world.post(&format!("/v1/sandboxes/{other}/exec"), json!({ "args": ["echo"] }), 200)["exit_code"], 0);
    assert_eq!(world.get(&format!("/v1/sandboxes/{hung}"))["status"], "running");
    drop(waiting);
    wait_until("there is room", || world.ask("POST", &format!("/v1/sandboxes/{hung}/ping"), None).status == 200);
}

#[test]
fn a_long_output_is_cut_and_a_stream_is_not() {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    let path = format!("/v1/sandboxes/{id}/exec");
    let ran = world.post(&path, json!({ "args": ["yes", (9 << 20).to_string()] }), 200);
    assert_eq!((ran["stdout"].as_str().unwrap().len(), &ran["stdout_truncated"]), (8 << 20, &json!(true)));
    assert_eq!((&ran["stderr_truncated"], &ran["exit_code"]), (&json!(false), &json!(0)));
    let all = world.stream("POST", &path, Some(json!({ "args": ["yes", (9 << 20).to_string()], "stream": true })));
    assert!({ all }.rest().matches('y').count() >= 9 << 20);
}

#[test]
fn a_pong_is_what_published_clients_know() {
    let world = World::open();
    world.take_warm_snapshot("warm");
    let ping = |tag: &str| {
        let made = world.post("/v1/sandboxes", json!({ "snapshot_tag": tag }), 201);
        let path = format!("/v1/sandboxes/{}/ping", made[0]["id"].as_str().unwrap());
        world.ask("POST", &path, None).expect(200);
        world.ask("POST", &path, None).expect(200).json()
    };
    let pong = ping("warm");
    assert_eq!((&pong["numpy_version"], &pong["agent_lang"]), (&json!("2.3.4"), &json!("python")));
    assert_eq!((&pong["pid"], &pong["warmup_ready"]), (&json!(1), &json!(true)));
    assert_eq!(ping("base")["numpy_version"], "not-installed");
}
