//! Snapshots forked over HTTP: what is told of each sandbox, and those that live only as long as somebody listens.

use serde_json::{Value, json};

use crate::support::{World, wait_until};

const FORK: &str = "/v1/snapshots/base/fork";

fn ids(forked: &Value) -> Vec<String> {
    let all = forked["sandboxes"].as_array().unwrap().iter();
    all.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

/// What the event says that begins the stream.
fn forked(stream: &mut crate::support::Lines) -> Value {
    stream.until("event: forked");
    serde_json::from_str(stream.until("data:").trim_start_matches("data:")).unwrap()
}

#[test]
fn a_fork_tells_how_long_each_took_and_all_are_known() {
    let world = World::open();
    let asked = json!({ "n": 3, "labels": { "a": "b" }, "env": { "X": "y" }, "metadata": { "run": "7" } });
    let made = world.post(FORK, asked, 201);
    assert_eq!((ids(&made).len(), &made["failures"]), (3, &json!([])));
    let first = &made["sandboxes"][0];
    assert!(first["ready_us"].as_u64() > Some(0) && first["memory"]["private_kib"].as_u64() > Some(0), "{first}");
    assert!(made["timings"]["ready_us"].as_u64() >= made["timings"]["forked_us"].as_u64(), "{made}");
    let listed = world.get("/v1/sandboxes?label=a=b");
    assert_eq!(listed.as_array().unwrap().len(), 3);
    assert!(listed[0].get("memory").is_none(), "it was not asked for");
    for bad in [
        json!({ "n": 0 }),
        json!({ "n": 4097 }),
        json!({ "timeout_secs": 0 }),
        json!({ "metadata": { "": "x" } }),
        json!({ "env": { "A B": "x" } }),
        json!({ "memory_limit_mib": 1 }),
    ] {
        assert_eq!(world.ask("POST", FORK, Some(bad.clone())).code(400), "invalid_request", "{bad}");
    }
    assert_eq!(world.ask("POST", "/v1/snapshots/none/fork", Some(json!({}))).code(404), "snapshot_not_found");
}

#[test]
fn who_leaves_takes_what_is_attached_along() {
    let world = World::open();
    let staying = world.spawn(1);
    let mut stream = world.stream("POST", FORK, Some(json!({ "n": 2, "attached": true })));
    let made = ids(&forked(&mut stream));
    assert_eq!(world.living().len(), 3);
    let path = format!("/v1/sandboxes/{}", made[0]);
    assert_eq!(world.get(&path)["status"], "running");
    drop(stream);
    wait_until("the end of what was attached", || world.living() == staying);
    wait_until("that it is forgotten", || world.ask("GET", &path, None).status == 404);
    assert_eq!(world.homes().len(), 1, "nothing is left of them");
}

#[test]
fn what_is_attached_ends_with_the_daemon() {
    let mut world = World::open();
    let mut stream = world.stream("POST", FORK, Some(json!({ "attached": true })));
    let made = ids(&forked(&mut stream));
    assert_eq!(world.living(), made);
    world.kill_daemon();
    wait_until("its end", || world.living().is_empty());
    world.start();
    let mut stream = world.stream("POST", FORK, Some(json!({ "attached": true })));
    forked(&mut stream);
    assert_eq!(world.stop_daemon(), Some(0));
    let last = stream.rest();
    assert!(last.contains("event: error") && last.contains(r#""code":"stopping""#), "{last}");
    wait_until("its end", || world.living().is_empty());
}

#[test]
fn the_living_are_found_by_the_beginning_of_their_id() {
    let world = World::open();
    let made = world.spawn(2);
    let found = |query: &str| {
        let listed = world.get(&format!("/v1/sandboxes?{query}"));
        listed.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found(&format!("id={}", made[0])), [made[0].as_str()]);
    assert_eq!(found(&format!("id={}", &made[1]["sb-".len()..])), [made[1].as_str()]);
    assert_eq!(found("id=sb-"), made);
    assert!(found("id=sb-%25").is_empty() && found("id=_").is_empty());
    // One that has died since is not told of when its memory is asked for.
    let child = engine::open(&made[0], &world.dirs).unwrap();
    engine::kill(&child).unwrap();
    assert_eq!(found("memory=true"), [made[1].as_str()]);
    assert!(world.get("/v1/sandboxes?memory=true")[0]["memory"]["shared_kib"].is_u64());
    assert_eq!(found(&format!("status=gone&id={}", made[0])), [made[0].as_str()]);
}
