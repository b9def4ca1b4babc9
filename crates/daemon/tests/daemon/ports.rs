//! Servers inside of sandboxes: by HTTP, by what it becomes, and as bytes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::support::{TOKEN, World};

/// A server as it could run in a guest: it says what it was asked, and switches if it is asked to.
fn server() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer(stream.unwrap()));
        }
    });
    port
}

fn answer(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    if head.to_lowercase().contains("upgrade: chat") {
        let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n";
        stream.write_all(switch.as_bytes()).unwrap();
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        stream.write_all(format!("you said {line}").as_bytes()).unwrap();
        return;
    }
    let own = "set-cookie: session=1; path=/\r\nclear-site-data: *\r\nstrict-transport-security: max-age=9\r\n";
    let rest = format!("HTTP/1.1 200 OK\r\n{own}content-length: {}\r\n\r\n{head}", head.len());
    stream.write_all(rest.as_bytes()).unwrap();
}

/// Whatever is answered to a request that the daemon gets as it is, to the end of the connection.
fn raw(world: &World, request: &str) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, world.port())).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn a_server_is_asked_without_the_token_and_answers_as_a_stranger() {
    let world = World::closed();
    let id = world.spawn(1).remove(0);
    let path = format!("/v1/sandboxes/{id}/ports/{}", server());
    let ask = |rest: &str, more: &str| {
        raw(&world, &format!("GET {path}{rest} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n"))
    };
    let token = format!("authorization: Bearer {TOKEN}\r\n");
    assert!(ask("/", "").starts_with("HTTP/1.1 401 "), "it is private");
    let said = ask("/a%20b/c?d=e%2F", &token).to_lowercase();
    for part in ["get /a%20b/c?d=e%2f http/1.1", "content-security-policy: sandbox", "host: localhost:"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!said.contains("authorization") && !said.contains(TOKEN), "{said}");
    assert!(ask("/", &token).contains("GET / HTTP/1.1"));
    assert!(ask("", &token).starts_with("HTTP/1.1 426 "), "it has no path, and is to become nothing");
    for port in ["0", "65536", "x"] {
        assert_eq!(world.ask("GET", &format!("/v1/sandboxes/{id}/ports/{port}/"), None).code(400), "invalid_request");
    }
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    assert_eq!(world.ask("GET", &format!("/v1/sandboxes/{id}/ports/{free}/"), None).code(502), "nobody_listens");
    assert_eq!(world.ask("GET", "/v1/sandboxes/sb-none/ports/80/", None).code(404), "sandbox_not_found");
}

#[test]
fn a_server_has_its_own_cookies_and_speaks_for_nobody_else() {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    let port = server();
    let path = format!("/v1/sandboxes/{id}/ports/{port}/");
    let ask =
        |more: &str| raw(&world, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n"));
    let said = ask("");
    let set = format!("set-cookie: forkd.{id}.{port}.session=1; Path={path}\r\n");
    assert!(said.contains(&set), "{said}");
    assert!(!said.contains("clear-site-data") && !said.contains("strict-transport-security"), "{said}");
    let said = ask(&format!("cookie: theirs=1; forkd.{id}.{port}.session=1; forkd.{id}.1.session=2\r\n"));
    assert!(said.contains("cookie: session=1\r\n") && !said.contains("theirs"), "{said}");
}

#[test]
fn a_connection_becomes_what_both_sides_want() {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    let path = format!("/v1/sandboxes/{id}/ports/{}", server());
    let ask = |rest: &str, to: &str, then: &str| {
        raw(
            &world,
            &format!(
                "GET {path}{rest} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: {to}\r\n\r\n{then}"
            ),
        )
    };
    let chat = ask("/ws", "chat", "hello\n");
    assert!(chat.starts_with("HTTP/1.1 101 ") && chat.ends_with("you said hello\n"), "{chat}");
    let bytes = ask("", "tcp", "GET /plain HTTP/1.0\r\n\r\n");
    assert!(bytes.starts_with("HTTP/1.1 101 ") && bytes.ends_with("GET /plain HTTP/1.0\r\n\r\n"), "{bytes}");
}
