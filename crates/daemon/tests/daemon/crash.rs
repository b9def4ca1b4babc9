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

/// A sandbox that the daemon would take for one of its own, and does not know; as if it had been killed between the fork
/// and its registry.
fn fork_a_stranger(world: &World, known: &str) -> String {
    let record = world.dirs.run.join("vms").join(known).join("vm.json");
    let text = std::fs::read_to_string(record).unwrap();
    let owner = serde_json::from_str::<serde_json::Value>(&text).unwrap()["owner"].clone();
    let option = engine::ChildOptions { owner: Some(owner.as_str().unwrap().to_owned()), ..Default::default() };
    let spec = engine::ForkSpec {
        tag: "base".parse().unwrap(),
        children: vec![option],
        lifetime: engine::Lifetime::Detached,
        results: engine::Results::AllOrNothing,
        limit: crate::http::PATIENCE,
        cancel: None,
    };
    let forked = engine::fork(&spec, &world.dirs).unwrap();
    forked.children[0].as_ref().unwrap().child.id().to_owned()
}

#[test]
fn what_was_made_for_an_answer_that_never_came_is_ended() {
    let mut world = World::open();
    let known = world.spawn(1).remove(0);
    world.kill_daemon();
    fork_a_stranger(&world, &known);
    assert_eq!(world.living().len(), 2);
    world.start();
    assert_eq!(world.living(), [known]);
}

#[test]
fn a_sandbox_that_nobody_knows_is_ended_without_a_restart() {
    let world = World::open();
    let known = world.spawn(1).remove(0);
    let stranger = fork_a_stranger(&world, &known);
    assert_eq!(world.ask("GET", &format!("/v1/sandboxes/{stranger}"), None).code(404), "sandbox_not_found");
    wait_until("its end", || world.living() == [known.clone()]);
    wait_until("a word about it", || world.log().contains(&stranger));
}

/// What a daemon says that does not start.
fn refusal(world: &World, words: &[&str]) -> String {
    let mut command = world.command(&[&["--bind", "127.0.0.1:0"], words].concat());
    let output = command.stderr(std::process::Stdio::piped()).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_second_daemon_is_refused() {
    let world = World::open();
    let said = refusal(&world, &[]);
    assert!(said.contains("Running") && said.contains("daemon.lock"), "{said}");
    assert_eq!(world.get("/healthz")["ok"], true);
    // Also one of another home that would share the registry.
    let mut other = World::open();
    assert_eq!(other.stop_daemon(), Some(0));
    let state = world.dirs.data.join("registry.db");
    let said = refusal(&other, &["--state", state.to_str().unwrap()]);
    assert!(said.contains("Running") && said.contains("registry.db.lock"), "{said}");
    assert_eq!(world.get("/v1/sandboxes"), json!([]));
}

#[test]
fn what_is_not_the_daemons_is_left_alone() {
    let mut world = World::open();
    assert_eq!(world.stop_daemon(), Some(0));
    let file = world.home.path().join("state.json");
    let text = r#"{"snapshots": {}, "sandboxes": {}, "workspaces": {}}"#;
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    assert!(refusal(&world, &["--state", path]).contains("Foreign"));
    assert!(refusal(&world, &["--socket", path]).contains("NotASocket"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    // A daemon that was killed leaves its socket, and the next one takes its place.
    world.start();
    world.kill_daemon();
    assert!(world.socket().exists());
    world.start();
    assert_eq!(world.get("/healthz")["ok"], true);
}

#[test]
fn who_started_it_is_told_when_it_reads_things_again() {
    let world = World::open();
    let socket = std::os::unix::net::UnixDatagram::bind(world.home.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(crate::http::PATIENCE)).unwrap();
    world.signal(rustix::process::Signal::HUP);
    let mut heard = [0; 1024];
    let mut hear = || {
        let length = socket.recv(&mut heard).unwrap();
        String::from_utf8_lossy(&heard[..length]).into_owned()
    };
    // That it is ready for the first time may still be said.
    let mut reloading = hear();
    while !reloading.contains("RELOADING=1\n") {
        reloading = hear();
    }
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    assert!(hear().contains("READY=1"));
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
