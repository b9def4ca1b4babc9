//! A daemon that ends by itself, and what it says of itself.

use serde_json::{Value, json};

use crate::support::{World, wait_until};

/// Twice as long as it would stay if nobody needed it: that it does not end cannot be waited for in another way.
fn outlast_idleness() {
    std::thread::sleep(std::time::Duration::from_secs(2));
}

#[test]
fn it_ends_when_nobody_needs_it_and_not_before() {
    let mut world = World::open();
    assert_eq!(world.get("/v1/daemon")["idle_secs"], Value::Null);
    let made = world.spawn(1);
    assert_eq!(world.stop_daemon(), Some(0));
    let mut daemon = world.command(&["--socket-only", "--idle-secs", "1"]).spawn().unwrap();
    wait_until("a daemon that listens", || std::os::unix::net::UnixStream::connect(world.socket()).is_ok());
    wait_until("that only who asks is there", || world.get("/v1/daemon")["clients"] == 0);
    let told = world.get("/v1/daemon");
    assert_eq!((&told["idle_secs"], &told["sandboxes"]), (&1.into(), &1.into()));
    assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
    outlast_idleness();
    assert!(daemon.try_wait().unwrap().is_none(), "it has a sandbox to look after");
    let mut events = world.stream("GET", "/v1/events", None);
    events.until("200 OK");
    world.ask("DELETE", &format!("/v1/sandboxes/{}", made[0]), None).expect(204);
    events.until("sandbox.killed");
    wait_until("that only who listens is there", || world.get("/v1/daemon")["clients"] == 1);
    outlast_idleness();
    assert!(daemon.try_wait().unwrap().is_none(), "it has a client");
    drop(events);
    wait_until("its end", || daemon.try_wait().unwrap().is_some());
    assert!(daemon.wait().unwrap().success() && !world.socket().exists());
}

#[test]
fn work_that_nobody_waits_for_is_done_all_the_same() {
    let mut world = World::open();
    assert_eq!(world.stop_daemon(), Some(0));
    let mut daemon = world.command(&["--socket-only", "--idle-secs", "1"]).spawn().unwrap();
    wait_until("a daemon that listens", || std::os::unix::net::UnixStream::connect(world.socket()).is_ok());
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let source = format!("http://{}/p", server.local_addr().unwrap());
    let asked = world.stream("POST", "/v1/packs/pull", Some(json!({ "source": source, "tag": "x" })));
    let (download, _) = server.accept().unwrap();
    drop(asked);
    outlast_idleness();
    assert!(daemon.try_wait().unwrap().is_none(), "it has something to do");
    drop((download, server));
    wait_until("its end", || daemon.try_wait().unwrap().is_some());
}
