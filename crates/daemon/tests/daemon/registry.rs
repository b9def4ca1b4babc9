//! What the daemon remembers, while others have their hands on it.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::http::{PATIENCE, request, unix};
use crate::support::{World, wait_until};

/// More than the daemon has threads that must not wait, on any machine.
const CROWD: usize = 256;
/// Far less than the daemon waits for a file that somebody else holds.
const AT_ONCE: Duration = Duration::from_secs(1);

fn asked(world: &World, method: &str, path: &str, body: Option<&str>) -> UnixStream {
    let mut stream = unix(&world.socket());
    let text = request(method, path, &[("content-type", "application/json")], body);
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

/// Whether nothing comes for so long.
fn is_silent(mut stream: &UnixStream, time: Duration) -> bool {
    stream.set_read_timeout(Some(time)).unwrap();
    let read = stream.read(&mut [0]);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    read.is_err_and(|error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
}

#[test]
fn a_registry_that_is_slow_keeps_only_those_waiting_who_need_it() {
    let world = World::open();
    let path = format!("/v1/sandboxes/{}/renew", world.spawn(1)[0]);
    let held = world.registry();
    held.execute_batch("BEGIN IMMEDIATE").unwrap();
    let changing = asked(&world, "POST", &path, Some(r#"{"ttl_secs":600}"#));
    wait_until("the registry is waited for", || {
        is_silent(&asked(&world, "GET", "/version", None), Duration::from_millis(100))
    });
    let waiting: Vec<_> = (0..CROWD).map(|_| asked(&world, "GET", "/version", None)).collect();
    assert!(!is_silent(&asked(&world, "GET", "/healthz", None), AT_ONCE), "whoever asks for nothing is answered");
    assert!(is_silent(&waiting[0], Duration::from_millis(1)), "while the others wait");
    held.execute_batch("COMMIT").unwrap();
    for mut stream in waiting.into_iter().chain([changing]) {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[test]
fn who_has_seen_more_than_there_is_hears_what_comes() {
    let world = World::open();
    let kept = world.spawn(1).remove(0);
    let mut live = world.stream("GET", "/v1/events?since=5000", None);
    live.until("text/event-stream");
    world.ask("DELETE", &format!("/v1/sandboxes/{kept}"), None).expect(204);
    let told = live.take_until("event: sandbox.killed");
    assert!(!told.contains("sandbox.ready"), "and not what was before: {told}");
}
