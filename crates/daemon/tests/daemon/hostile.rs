//! Requests that no good client makes.

use std::io::{Read, Write};

use serde_json::json;

use crate::http::{exchange, request, tcp, unix};
use crate::support::{HOLES, TOKEN, World};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn every_failure_is_told_in_the_same_way() {
    let world = World::open();
    let post = |path: &str, headers: &[(&str, &str)], body: &str| world.ask_tcp("POST", path, headers, Some(body));
    assert_eq!(post("/v1/sandboxes", &[JSON], "{").code(400), "malformed_json");
    assert_eq!(post("/v1/sandboxes", &[JSON], "[]").code(422), "invalid_request");
    assert_eq!(post("/v1/sandboxes", &[JSON], r#"{"snapshot_tag":7}"#).code(422), "invalid_request");
    assert_eq!(post("/v1/sandboxes", &[], "{}").code(415), "unsupported_media_type");
    assert_eq!(post("/v1/sandboxes", &[("content-type", "text/plain")], "{}").code(415), "unsupported_media_type");
    assert_eq!(post("/v1/workspaces", &[JSON], r#"{"name":"a/b","snapshot_tag":"base"}"#).code(400), "invalid_name");
    assert_eq!(post("/v1/tokens", &[JSON], r#"{"name":"../x","scopes":["read"]}"#).code(400), "invalid_name");
    for taken in ["token-file", "local", "anonymous"] {
        let body = format!(r#"{{"name":"{taken}","scopes":["read"]}}"#);
        assert_eq!(post("/v1/tokens", &[JSON], &body).code(400), "invalid_name");
    }
    assert_eq!(post("/v1/tokens", &[JSON], r#"{"name":"x","scopes":[]}"#).code(400), "invalid_request");
    assert_eq!(post("/v1/snapshots", &[JSON], r#"{"tag":"x","recipe":"../../etc"}"#).code(400), "invalid_request");
    assert_eq!(
        post("/v1/snapshots", &[JSON], r#"{"tag":"x","kernel":"/no","rootfs":"/no"}"#).code(400),
        "invalid_request"
    );
    assert_eq!(world.ask_tcp("GET", "/nowhere", &[], None).code(404), "route_not_found");
    assert_eq!(world.ask_tcp("PUT", "/v1/sandboxes", &[], None).code(405), "method_not_allowed");
    let big = format!(r#"{{"snapshot_tag":"{}"}}"#, "x".repeat(17 << 20));
    assert_eq!(post("/v1/sandboxes", &[JSON], &big).code(413), "too_large");
    let answer = world.ask_tcp("GET", "/v1/sandboxes/none", &[], None);
    assert_eq!(answer.header("x-request-id").map(str::len), Some(16));
}

/// A body that makes sense to a route, so that what is refused is the name; `{}` does to the others.
fn body_for(route: &str) -> &'static str {
    match route.rsplit('/').next().unwrap() {
        "exec" | "processes" => r#"{"args":["echo"]}"#,
        "eval" => r#"{"code":"1"}"#,
        "compact" => r#"{"to":"x"}"#,
        "renew" => r#"{"ttl_secs":60}"#,
        "push" => r#"{"url":"http://127.0.0.1:1/x"}"#,
        "egress" => r#"{"egress":"none"}"#,
        "signal" => r#"{"signal":"TERM"}"#,
        "resize" => r#"{"rows":1,"cols":1}"#,
        _ => "{}",
    }
}

#[test]
fn no_name_leads_out_of_its_place() {
    let world = World::open();
    let names = [
        "..",
        "%2e%2e",
        "..%2f..%2fetc%2fpasswd",
        "%2fetc%2fpasswd",
        "a%00b",
        "%ff",
        ".lock",
        "sb-..",
        "sb-%2f..",
        "x%0ay",
    ];
    for (method, route) in world.routes() {
        // What is behind a port is a path, and the guest's.
        for (hole, _) in HOLES.iter().filter(|(hole, _)| *hole != "{path}" && route.contains(hole)) {
            for name in names {
                let path =
                    HOLES.iter().fold(route.replace(hole, name), |path, (hole, other)| path.replace(hole, other));
                let body = (method != "GET").then(|| body_for(&route));
                let answer = world.ask_tcp(&method, &path, &[JSON], body);
                assert!((400..500).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.text());
            }
        }
    }
    assert!(world.dirs.data.join("snapshots/base/manifest.json").exists());
}

#[test]
fn no_name_in_a_body_leads_out_of_its_place() {
    let world = World::open();
    let branch = format!("/v1/sandboxes/{}/branch", world.spawn(1)[0]);
    for name in ["..", "../x", "/etc/passwd", "a/b", "a\0b", ".lock", "x\ny"] {
        for (path, body) in [
            ("/v1/sandboxes", json!({ "snapshot_tag": name })),
            ("/v1/workspaces", json!({ "name": "w", "snapshot_tag": name })),
            ("/v1/workspaces", json!({ "name": name, "snapshot_tag": "base" })),
            (&branch, json!({ "tag": name })),
            ("/v1/snapshots", json!({ "tag": name, "recipe": "debian" })),
            ("/v1/snapshots/base/compact", json!({ "to": name })),
            ("/v1/packs/pull", json!({ "source": "http://127.0.0.1:1/p", "tag": name })),
            ("/v1/tokens", json!({ "name": name, "scopes": ["read"] })),
        ] {
            let answer = world.ask("POST", path, Some(body.clone()));
            let code = answer.code(400);
            assert!(["invalid_tag", "invalid_name"].contains(&code.as_str()), "{path} {body}: {}", answer.text());
        }
    }
    let there = std::fs::read_dir(world.dirs.data.join("snapshots")).unwrap().map(|entry| entry.unwrap().file_name());
    let there: Vec<_> = there.filter(|name| !name.to_string_lossy().starts_with('.')).collect();
    assert_eq!(there, ["base"]);
}

#[test]
fn who_takes_his_time_is_cut_short() {
    let world = World::open_with(&["--head-secs", "1", "--body-secs", "1"]);
    let mut slow = tcp(world.port());
    slow.write_all(b"POST /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n").unwrap();
    slow.write_all(b"connection: close\r\ncontent-length: 100\r\n\r\n{").unwrap();
    assert_eq!(exchange(slow, b"").unwrap().code(408), "request_timeout");
    let mut slower = tcp(world.port());
    slower.write_all(b"GET /healthz HTTP/1.1\r\nhost: lo").unwrap();
    let mut said = Vec::new();
    slower.read_to_end(&mut said).expect("it is closed, and not waited for");
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn whoever_says_nothing_or_nonsense_disturbs_nobody() {
    let world = World::open();
    let mut silent: Vec<_> = (0..50).map(|_| tcp(world.port())).collect();
    silent[0].write_all(b"POST /v1/sandboxes HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{").unwrap();
    silent[1].write_all(b"GET / HT").unwrap();
    for nonsense in [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b"\0\0\0\0", &[b'A'; 100_000]] {
        let mut stream = tcp(world.port());
        // Whoever is not understood may be cut short while he speaks.
        drop(stream.write_all(nonsense));
        drop(stream.shutdown(std::net::Shutdown::Write));
        let mut said = Vec::new();
        drop(stream.read_to_end(&mut said));
        assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&said));
    }
    let cut = request("POST", "/v1/sandboxes", &[JSON], Some(r#"{"snapshot_tag":"base"}"#));
    let mut truncated = tcp(world.port());
    truncated.write_all(&cut.as_bytes()[..cut.len() - 5]).unwrap();
    drop(truncated);
    assert_eq!(world.spawn(1).len(), 1);
    assert_eq!(world.living().len(), 1, "what was cut short made nothing");
    drop(silent);
}

#[test]
fn a_page_that_leads_a_browser_here_is_refused() {
    let world = World::open();
    let ask = |world: &World, host: &str, more: &str| {
        let text = format!("GET /v1/sandboxes HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n");
        exchange(tcp(world.port()), text.as_bytes()).unwrap()
    };
    let port = world.port();
    for host in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), "[::1]".into()] {
        assert_eq!(ask(&world, &host, "").status, 200, "{host}");
    }
    assert_eq!(ask(&world, &format!("evil.example:{port}"), "").code(403), "host_not_allowed");
    assert_eq!(ask(&world, "localhost", "origin: http://evil.example\r\n").code(403), "host_not_allowed");
    let own = format!("127.0.0.1:{port}");
    assert_eq!(ask(&world, &own, &format!("origin: http://{own}\r\n")).status, 200);
    // What a guest serves by `forkd port` is on this host, too.
    assert_eq!(ask(&world, &own, "origin: http://127.0.0.1:8080\r\n").code(403), "host_not_allowed");
    // Who brings a token is nobody's browser, and the unix socket is no address.
    let closed = World::closed();
    let bearer = format!("authorization: Bearer {TOKEN}\r\n");
    assert_eq!(ask(&closed, "forkd.example", &bearer).status, 200);
    let text = "GET /v1/sandboxes HTTP/1.1\r\nhost: forkd\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange(unix(&world.socket()), text.as_bytes()).unwrap().status, 200);
}
