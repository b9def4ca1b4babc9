//! What the audit log says: who did what to what.

use serde_json::{Value, json};

use crate::support::World;

/// The last line of a request with this method and path.
fn line(world: &World, method: &str, path: &str) -> Value {
    let text = std::fs::read_to_string(world.dirs.data.join("audit.log")).unwrap();
    let lines = text.lines().rev().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let found = lines.into_iter().find(|line| line["method"] == method && line["path"] == path);
    found.unwrap_or_else(|| panic!("no {method} {path} in {text}"))
}

#[test]
fn a_line_says_who_did_what_to_what() {
    let world = World::open();
    let headers = [("user-agent", "me/1"), ("content-type", "application/json")];
    let answer = world.ask_tcp("POST", "/v1/sandboxes", &headers, Some(r#"{"snapshot_tag":"base"}"#)).expect(201);
    let made = answer.json()[0]["id"].clone();
    let said = line(&world, "POST", "/v1/sandboxes");
    assert_eq!((&said["sandbox"], &said["tag"], &said["status"]), (&made, &json!("base"), &json!(201)), "{said}");
    assert_eq!((&said["actor"], &said["ua"]), (&json!("anonymous"), &json!("me/1")), "{said}");
    assert_eq!(said["request_id"].as_str(), answer.header("x-request-id"));
    assert!(said["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{said}");
    assert!(said["latency_us"].is_u64() && said["ts"].as_str().unwrap().ends_with('Z'), "{said}");

    let both = world.spawn(2);
    assert_eq!(line(&world, "POST", "/v1/sandboxes")["sandboxes"], json!(both));
    let forked = world.post("/v1/snapshots/base/fork", json!({ "n": 1 }), 201);
    let said = line(&world, "POST", "/v1/snapshots/base/fork");
    assert_eq!((&said["sandbox"], &said["tag"]), (&forked["sandboxes"][0]["id"], &json!("base")), "{said}");

    let path = format!("/v1/sandboxes/{}/branch", both[0]);
    world.post(&path, json!({ "tag": "mine" }), 201);
    let said = line(&world, "POST", &path);
    assert_eq!((&said["sandbox"], &said["tag"]), (&json!(both[0]), &json!("mine")), "{said}");

    let made = world.post("/v1/workspaces", json!({ "name": "w", "snapshot_tag": "base" }), 201);
    let said = line(&world, "POST", "/v1/workspaces");
    assert_eq!((&said["workspace"], &said["tag"]), (&json!("w"), &json!("base")), "{said}");
    assert_eq!(said["sandbox"], made["live_sandbox_id"]);

    let refused = world.ask("POST", "/v1/sandboxes", Some(json!({ "snapshot_tag": "nosuch" })));
    let said = line(&world, "POST", "/v1/sandboxes");
    assert_eq!((&said["tag"], &said["code"]), (&json!("nosuch"), &json!(refused.code(404))), "{said}");
    assert!(said.get("sandbox").is_none() && said.get("sandboxes").is_none(), "{said}");
}
