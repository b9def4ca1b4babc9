//! The daemon is killed in the middle of things and started again.

use serde_json::json;

use crate::support::{World, holds, wait_until};

#[test]
fn sandboxes_outlive_the_daemon_and_are_managed_again() {
    let mut world = World::open();
    let ids = world.spawn(3);
    world.kill_daemon();
    let dead = engine::open(&ids[0], &world.dirs).unwrap();
    engine::kill(&dead).unwrap();
    world.start();
    assert_eq!(world.get(&format!("/v1/sandboxes/{}", ids[0]))["status"], "gone");
    let ran = world.post(&format!("/v1/sandboxes/{}/exec", ids[1]), json!({ "args": ["echo", "still"] }), 200);
    assert_eq!(ran["stdout"], "still\n");
    world.ask("DELETE", &format!("/v1/sandboxes/{}", ids[2]), None).expect(204);
    assert_eq!(world.living(), [ids[1].clone()]);
}

#[test]
fn what_was_made_for_an_answer_that_never_came_is_ended() {
    let mut world = World::open();
    let known = world.spawn(1).remove(0);
    // As if the daemon had been killed between the fork and its registry.
    let record = |id: &str| world.dirs.run.join("vms").join(id).join("vm.json");
    let text = std::fs::read_to_string(record(&known)).unwrap();
    let owner = serde_json::from_str::<serde_json::Value>(&text).unwrap()["owner"].clone();
    let option = engine::ChildOptions { owner: Some(owner.as_str().unwrap().to_owned()), ..Default::default() };
    let spec = engine::ForkSpec {
        tag: "base".parse().unwrap(),
        children: vec![option],
        lifetime: engine::Lifetime::Detached,
        results: engine::Results::AllOrNothing,
        limits: engine::Limits::default(),
        limit: crate::http::PATIENCE,
        cancel: None,
    };
    let forked = engine::fork(&spec, &world.dirs).unwrap();
    let unknown = forked.children[0].as_ref().unwrap().child.id().to_owned();
    assert_eq!(world.ask("GET", &format!("/v1/sandboxes/{unknown}"), None).code(404), "sandbox_not_found");
    assert_eq!(world.living().len(), 2);
    world.kill_daemon();
    world.start();
    assert_eq!(world.living(), [known]);
}

#[test]
fn a_second_daemon_is_refused() {
    let world = World::open();
    let output = world.command(&["--bind", "127.0.0.1:0"]).stderr(std::process::Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("Running"), "{said}");
    assert_eq!(world.get("/healthz")["ok"], true);
}

#[test]
fn a_signal_ends_it_in_order_and_another_reads_things_again() {
    let mut world = World::closed();
    let bearer = |token: &str| format!("Bearer {token}");
    let new = "fedcba9876543210fedcba9876543210";
    std::fs::write(world.home.path().join("token"), new).unwrap();
    let log = world.dirs.data.join("audit.log");
    std::fs::rename(&log, world.home.path().join("moved")).unwrap();
    world.signal(rustix::process::Signal::HUP);
    let ask = |world: &World| world.ask_tcp("GET", "/version", &[("authorization", &bearer(new))], None).status;
    wait_until("the new token", || ask(&world) == 200);
    wait_until("the new log", || holds(&log, "/version"));
    let mut events = world.stream("GET", "/v1/events", None);
    events.until("text/event-stream");
    assert_eq!(world.stop_daemon(), Some(0));
    assert!(!world.socket().exists());
    events.rest();
    assert!(!world.log().contains(new), "a token is in the log");
}
