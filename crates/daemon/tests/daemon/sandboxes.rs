//! The life of sandboxes over HTTP.

use proto::control::{KILLED_AT, Mark, STATE};
use serde_json::{Value, json};

use crate::support::{World, wait_until};

const FIELDS: [&str; 20] = [
    "id",
    "snapshot_tag",
    "netns",
    "guest_addr",
    "created_at_unix",
    "pid",
    "memory_limit_mib",
    "has_branched",
    "last_branch_memory_path",
    "branch_count",
    "status",
    "labels",
    "expires_at_unix",
    "reason",
    "hostname",
    "limits",
    "oom_killed",
    "throttled",
    "disk_full",
    "pids_limited",
];

#[test]
fn a_sandbox_is_made_used_and_ended() {
    let world = World::open();
    assert_eq!(world.get("/healthz"), json!({ "ok": true }));
    assert_eq!(world.get("/version")["api"], "v1");
    let made = world.post("/v1/sandboxes", json!({ "snapshot_tag": "base", "per_child_netns": false }), 201);
    for field in FIELDS {
        assert!(made[0].get(field).is_some(), "{field} is missing in {made}");
    }
    assert_eq!(made[0]["guest_addr"], "10.42.0.2:8888");
    let id = made[0]["id"].as_str().unwrap();
    assert_eq!(world.get(&format!("/v1/sandboxes/{id}"))["pid"], made[0]["pid"]);
    // As published clients ask: without a body, and with the type of one that is not there.
    let pong =
        world.ask_with("POST", &format!("/v1/sandboxes/{id}/ping"), &[("content-type", "application/json")], None);
    assert_eq!(pong.expect(200).json()["pong"], true);
    let ran = world.post(&format!("/v1/sandboxes/{id}/exec"), json!({ "args": ["echo", "hello", "you"] }), 200);
    assert_eq!(
        (&ran["stdout"], &ran["exit_code"], &ran["timed_out"]),
        (&json!("hello you\n"), &json!(0), &json!(false))
    );
    let ran = world.post(&format!("/v1/sandboxes/{id}/exec"), json!({ "args": ["nosuch"] }), 200);
    assert_eq!(ran["exit_code"], 127);
    let body = json!({ "args": ["nosuch"], "stream": true });
    let mut streamed = world.stream("POST", &format!("/v1/sandboxes/{id}/exec"), Some(body));
    streamed.until("event: stderr");
    assert!(streamed.until("data:").contains("there is no program `nosuch`"));
    assert!(streamed.until("exit_code").contains("127"));
    let fed = json!({ "args": ["cat"], "stdin": "in and out" });
    assert_eq!(world.post(&format!("/v1/sandboxes/{id}/exec"), fed, 200)["stdout"], "in and out");
    let told = world.post(&format!("/v1/sandboxes/{id}/eval"), json!({ "code": "6 * 7" }), 200);
    assert_eq!((&told["result"], &told["error"], &told["exit_code"]), (&json!("6 * 7"), &Value::Null, &json!(0)));
    world.ask("DELETE", &format!("/v1/sandboxes/{id}"), None).expect(204);
    assert_eq!(world.ask("GET", &format!("/v1/sandboxes/{id}"), None).code(404), "sandbox_not_found");
    assert!(world.living().is_empty());
}

#[test]
fn many_come_at_once_and_are_found_by_what_they_are() {
    let world = World::open();
    let body = json!({ "snapshot_tag": "base", "n": 5, "labels": { "run": "1" },
                       "per_child": [{}, {}, { "labels": { "run": "2" }, "env": { "A": "b" } }, {}, {}] });
    let made = world.post("/v1/sandboxes", body, 201);
    let id = |n: usize| made[n]["id"].as_str().unwrap().to_owned();
    let listed = |query: &str| -> Vec<String> {
        let listed = world.get(&format!("/v1/sandboxes{query}"));
        listed.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed("").len(), 5);
    assert_eq!(listed("?label=run%3D2"), [id(2)]);
    assert_eq!(listed("?label=run%3D1&label=run%3D2").len(), 0);
    assert_eq!(listed("?snapshot_tag=other").len(), 0);
    let first = world.ask("GET", "/v1/sandboxes?limit=3", None);
    let cursor = first.header("x-next-cursor").unwrap().to_owned();
    assert_eq!(first.json().as_array().unwrap().len(), 3);
    assert_eq!(listed(&format!("?limit=3&cursor={cursor}")), [id(3), id(4)]);
    for bad in ["?limit=x", "?status=dead", "?label=x", "?cursor=x"] {
        assert_eq!(world.ask("GET", &format!("/v1/sandboxes{bad}"), None).code(400), "invalid_request");
    }
}

#[test]
fn a_time_to_live_ends_and_can_be_renewed() {
    let world = World::open();
    let made = world.post("/v1/sandboxes", json!({ "snapshot_tag": "base", "n": 2, "ttl_secs": 1 }), 201);
    let [short, long] = [0, 1].map(|n| format!("/v1/sandboxes/{}", made[n]["id"].as_str().unwrap()));
    let renewed = world.post(&format!("{long}/renew"), json!({ "ttl_secs": 600 }), 200);
    assert!(renewed["expires_at_unix"].as_u64().unwrap() > made[1]["expires_at_unix"].as_u64().unwrap() + 500);
    wait_until("the end", || world.get(&short)["status"] == "gone");
    let gone = world.get(&short);
    assert_eq!((&gone["reason"], &gone["pid"]), (&json!("its time to live was up"), &Value::Null));
    assert_eq!(world.ask("POST", &format!("{short}/ping"), None).code(404), "sandbox_gone");
    let patched =
        world.ask("PATCH", &long, Some(json!({ "ttl_secs": null, "labels": { "a": "b" } }))).expect(200).json();
    assert_eq!((&patched["expires_at_unix"], &patched["labels"]["a"]), (&Value::Null, &json!("b")));
    assert_eq!(world.living().len(), 1);
    world.ask("DELETE", &short, None).expect(204);
    assert_eq!(world.ask("GET", &short, None).status, 404);
}

#[test]
fn a_key_makes_a_creation_happen_once() {
    let world = World::open();
    let create = |key: &str, n: u32| {
        world.ask_with(
            "POST",
            "/v1/sandboxes",
            &[("idempotency-key", key)],
            Some(json!({ "snapshot_tag": "base", "n": n })),
        )
    };
    let first = create("k1", 2).expect(201).json();
    assert_eq!(create("k1", 2).expect(201).json(), first);
    assert_eq!(create("k1", 1).code(422), "idempotency_mismatch");
    assert_eq!(world.living().len(), 2);
    let none = json!({ "snapshot_tag": "nosuch" });
    let failed = || world.ask_with("POST", "/v1/sandboxes", &[("idempotency-key", "k2")], Some(none.clone()));
    assert_eq!(failed().code(404), "snapshot_not_found");
    assert_eq!(failed().code(404), "snapshot_not_found", "a failure may be tried again");
}

#[test]
fn a_command_streams_and_ends_with_its_client() {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    let path = format!("/v1/sandboxes/{id}/exec");
    let all = world.stream("POST", &path, Some(json!({ "args": ["echo", "hé"], "stream": true }))).rest();
    let at = |text: &str| all.find(text).unwrap_or_else(|| panic!("{text} is not in {all}"));
    assert!(all.contains("text/event-stream"));
    let order =
        [at("event: started"), at("event: stdout"), at(r#"{"data":"hé\n","encoding":"utf8"}"#), at("event: exit")];
    assert!(order.is_sorted() && all.contains(r#"{"exit_code":0,"timed_out":false}"#), "{all}");
    let mut endless = world.stream("POST", &path, Some(json!({ "args": ["sleep"], "stream": true })));
    endless.until("event: started");
    drop(endless);
    // The stand-in's command ends only when it is killed; the daemon ends only when nothing is under way.
    let mut world = world;
    let begun = std::time::Instant::now();
    assert_eq!(world.stop_daemon(), Some(0));
    assert!(begun.elapsed().as_secs() < 20, "the command went on: {:?}", begun.elapsed());
}

#[test]
fn everything_that_changes_is_told() {
    let world = World::open();
    let mut live = world.stream("GET", "/v1/events", None);
    live.until("text/event-stream");
    let id = world.spawn(1).remove(0);
    live.until("event: sandbox.created");
    let ready = live.until("\"kind\":\"sandbox.ready\"");
    assert!(ready.contains(&id), "{ready}");
    world.ask("DELETE", &format!("/v1/sandboxes/{id}"), None).expect(204);
    live.until("event: sandbox.killed");
    let mut later = world.stream("GET", "/v1/events?since=0", None);
    later.until("event: sandbox.created");
    later.until("event: sandbox.killed");
}

#[test]
fn what_others_made_is_found_and_what_died_is_noticed() {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    let pid = world.get(&format!("/v1/sandboxes/{id}"))["pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_until("its end", || world.get(&format!("/v1/sandboxes/{id}"))["status"] == "gone");
    let spec = engine::ForkSpec {
        tag: "base".parse().unwrap(),
        children: vec![engine::ChildOptions::default()],
        lifetime: engine::Lifetime::Detached,
        results: engine::Results::AllOrNothing,
        limit: crate::http::PATIENCE,
        cancel: None,
    };
    let others = engine::fork(&spec, &world.dirs).unwrap();
    let id = others.children[0].as_ref().unwrap().child.id().to_owned();
    assert_eq!(world.get(&format!("/v1/sandboxes/{id}"))["status"], "running");
    wait_until("it is listed", || world.get("/v1/sandboxes").as_array().unwrap().len() == 1);
}

#[test]
fn each_has_its_own_limits_and_says_which_it_has_hit() {
    let world = World::open();
    let wanted = json!({ "snapshot_tag": "base", "n": 2, "limits": { "disk_mib": 8 },
                         "per_child": [{}, { "limits": { "disk_mib": 9 } }] });
    let made = world.post("/v1/sandboxes", wanted, 201);
    assert_eq!([&made[0]["limits"], &made[1]["limits"]], [&json!({ "disk_mib": 8 }), &json!({ "disk_mib": 9 })]);
    let id = made[0]["id"].as_str().unwrap();
    let path = format!("/v1/sandboxes/{id}");
    let hit = |info: &Value| ["oom_killed", "throttled", "disk_full"].map(|field| info[field].as_bool().unwrap());
    assert_eq!(hit(&world.get(&path)), [false; 3]);
    // As its VMM says it.
    let state = std::fs::File::options().write(true).open(world.dirs.run.join("vms").join(id).join(STATE)).unwrap();
    Mark::DiskFull.set(&state, true).unwrap();
    let mut live = world.stream("GET", "/v1/events?since=0", None);
    assert_eq!(hit(&world.get(&path)), [false, false, true]);
    assert!(live.until("event: sandbox.limited").contains("sandbox.limited"));
    let bad = json!({ "snapshot_tag": "base", "limits": { "cpu_weight": 0 } });
    assert_eq!(world.ask("POST", "/v1/sandboxes", Some(bad)).code(400), "invalid_request");
}

#[test]
fn one_that_did_what_it_may_not_says_what() {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    let path = format!("/v1/sandboxes/{id}");
    let pid = i32::try_from(world.get(&path)["pid"].as_i64().unwrap()).unwrap();
    let mut live = world.stream("GET", "/v1/events?since=0", None);
    // As its VMM does it.
    let state = std::fs::File::options().write(true).open(world.dirs.run.join("vms").join(&id).join(STATE)).unwrap();
    rustix::io::pwrite(&state, b"vcpu 59\n", KILLED_AT).unwrap();
    drop(state);
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    world.spawn(1);
    wait_until("its end", || world.get(&path)["status"] == "gone");
    let reason = world.get(&path)["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("made system call 59 in a thread of kind `vcpu`"), "{reason}");
    live.until("event: sandbox.gone");
    live.until("system call 59");
    wait_until("its burial", || !world.dirs.run.join("vms").join(&id).exists());
}

#[test]
fn branches_are_snapshots_that_can_be_forked_and_removed() {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    let branch = |body: Value| world.ask("POST", &format!("/v1/sandboxes/{id}/branch"), Some(body));
    let plain = branch(json!({})).expect(201).json();
    assert!(plain["tag"].as_str().unwrap().starts_with(&format!("branch-{id}-")), "{plain}");
    assert_eq!(
        (&plain["status"], &plain["branched_from"], &plain["pause_ms"]),
        (&json!("ready"), &json!(id), &json!(0.009))
    );
    assert!(plain.get("warning").is_none() && plain.get("diff_ms").is_none());
    let live = branch(json!({ "tag": "live", "mode": "live", "wait": false })).expect(202).json();
    assert_eq!((&live["status"], &live["bootable"]), (&json!("writing"), &json!(true)));
    assert_eq!(world.post("/v1/sandboxes", json!({ "snapshot_tag": "live" }), 201)[0]["snapshot_tag"], "live");
    let chained = branch(json!({ "tag": "chained", "mode": "diff", "parent_tag": "base" })).expect(201).json();
    assert!(chained["diff_logical_bytes"].as_u64().is_some(), "{chained}");
    let measured = branch(json!({ "tag": "measured", "measure_diff": true })).expect(201).json();
    assert!(measured["diff_ms"].is_f64() && measured["diff_physical_bytes"].is_u64(), "{measured}");
    world.ask("DELETE", "/v1/snapshots/measured", None).expect(204);
    assert_eq!(branch(json!({ "tag": "chained" })).code(409), "snapshot_exists");
    assert_eq!(branch(json!({ "mode": "diff", "parent_tag": "live" })).code(400), "invalid_request");
    let info = world.get(&format!("/v1/sandboxes/{id}"));
    assert_eq!((&info["has_branched"], &info["branch_count"]), (&json!(true), &json!(4)));
    let detail = world.get("/v1/snapshots/chained/info");
    assert_eq!((&detail["parent_tag"], &detail["ancestors"]), (&json!("base"), &json!(["base"])));
    assert_eq!(world.ask("DELETE", "/v1/snapshots/base", None).code(409), "snapshot_has_children");
    world.ask("DELETE", "/v1/snapshots/chained", None).expect(204);
    // What is still being written keeps it.
    wait_until("a branch that is written", || world.get("/v1/snapshots/live/info")["status"] == "ready");
    world.ask("DELETE", "/v1/snapshots/base", None).expect(204);
    assert_eq!(world.ask("DELETE", "/v1/snapshots/base", None).code(404), "snapshot_not_found");
    let tree = world.get("/v1/tree");
    assert!(tree.as_array().unwrap().iter().any(|node| node["tag"] == "live" && node["sandboxes"][0].is_object()));
}

#[test]
fn what_is_counted_has_the_published_names() {
    let world = World::open();
    let id = world.spawn(2).remove(0);
    let path = |what: &str| format!("/v1/sandboxes/{id}/{what}");
    world.post(&path("exec"), json!({ "args": ["echo"] }), 200);
    for program in ["echo", "nosuch"] {
        let body = json!({ "args": [program], "stream": true });
        world.stream("POST", &path("exec"), Some(body)).until("event: exit");
    }
    world.post(&path("eval"), json!({ "code": "1" }), 200);
    world.post(&path("branch"), json!({}), 201);
    let answer = world.ask("GET", "/metrics", None);
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4"));
    let text = answer.text();
    for line in [
        "forkd_snapshots_total 2",
        "forkd_sandboxes_active 2",
        "forkd_branches_in_flight 0",
        "forkd_branch_concurrency_cap 4",
        "forkd_build_info{version=",
        "forkd_spawn_ready_seconds_count 1",
        "forkd_branch_pause_seconds_count 1",
        "forkd_exec_seconds_count 3",
        "forkd_eval_seconds_count 1",
        "forkd_templates_running ",
        "forkd_networks{status=\"ready\"} 0",
        "forkd_networks{status=\"used\"} 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
