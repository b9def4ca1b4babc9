//! The line protocol of published clients, through the daemon.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};

use serde_json::{Value, json};

use crate::support::{TOKEN, World};

/// What the daemon answers when a connection is to become lines, and what comes on it for that line.
fn ask(world: &World, id: &str, more: &str, line: &str) -> (String, String) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, world.port())).unwrap();
    let head = format!("GET /v1/sandboxes/{id}/lines HTTP/1.1\r\nhost: localhost\r\n{more}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend_from_slice(&byte);
    }
    // As published clients do; they still listen.
    stream.write_all(line.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (String::from_utf8(head).unwrap(), answer)
}

const UPGRADE: &str = "connection: upgrade\r\nupgrade: tcp\r\n";

#[test]
fn a_line_asks_a_sandbox_and_it_answers() {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    let answer = |question: Value| -> Value {
        let (head, line) = ask(&world, &id, UPGRADE, &format!("{question}\n"));
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        serde_json::from_str(&line).unwrap()
    };
    let pong = answer(json!({ "action": "ping" }));
    assert_eq!((&pong["pong"], &pong["numpy_version"]), (&json!(true), &json!("not-installed")));
    let ran = answer(json!({ "action": "exec", "args": ["sh", "-c", "echo out; exit 7"] }));
    assert_eq!((&ran["stdout"], &ran["exit_code"]), (&json!("out\n"), &json!(7)));
    assert_eq!(answer(json!({ "action": "fly" }))["error"], "unknown action: fly");
}

#[test]
fn who_may_not_run_commands_does_not_get_there() {
    let world = World::closed();
    let id = world.spawn(1).remove(0);
    let token = |token: &str| format!("{UPGRADE}authorization: Bearer {token}\r\n");
    let status = |id: &str, more: &str| ask(&world, id, more, "").0.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(status(&id, UPGRADE), "401");
    let made = world.ask("POST", "/v1/tokens", Some(json!({ "name": "eyes", "scopes": ["read"] })));
    let eyes = made.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(status(&id, &token(&eyes)), "403");
    assert_eq!(status("sb-none", &token(TOKEN)), "404");
    assert_eq!(status(&id, &format!("authorization: Bearer {TOKEN}\r\nconnection: close\r\n")), "426");
    assert_eq!(status(&id, &token(TOKEN)), "101");
}
