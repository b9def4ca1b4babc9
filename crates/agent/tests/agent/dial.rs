//! Connections to whoever listens beside a real agent.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use session::{DialTarget, ErrorCode, SessionError, Transport};

use crate::support::Agent;

const LONG: usize = 3 << 20;

fn dial(agent: &Agent, to: &DialTarget) -> UnixStream {
    match agent.connect().dial(to).unwrap() {
        Transport::Unix(stream) => stream,
        Transport::Tcp(_) => panic!("it was a unix stream"),
    }
}

/// Reads to the end, and only then answers with as much and ends: both halves have to end by themselves.
fn answer(mut server: impl Read + Write) {
    let mut heard = Vec::new();
    server.read_to_end(&mut heard).unwrap();
    heard.reverse();
    server.write_all(&heard).unwrap();
}

fn converse(mut stream: UnixStream) {
    let said: Vec<u8> = (0..LONG).map(|index| u8::try_from(index % 251).unwrap()).collect();
    stream.write_all(&said).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    heard.reverse();
    assert!(heard == said, "{} bytes came back", heard.len());
}

#[test]
fn both_halves_end_by_themselves() {
    let agent = Agent::start();
    for address in ["127.0.0.1", "::1"] {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || answer(listener.accept().unwrap().0));
        converse(dial(&agent, &DialTarget::Tcp { address: None, port }));
        server.join().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || answer(listener.accept().unwrap().0));
    converse(dial(&agent, &DialTarget::Unix { path: path.to_str().unwrap().parse().unwrap() }));
    server.join().unwrap();
}

#[test]
fn who_leaves_is_told_to_the_other() {
    let agent = Agent::start();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = DialTarget::Tcp { address: Some("127.0.0.1".parse().unwrap()), port };
    // The server speaks first and leaves: what it said arrives.
    let mut client = dial(&agent, &to);
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(b"hello").unwrap();
    drop(server);
    let mut heard = String::new();
    client.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "hello");
    // The client leaves: the server's reading ends.
    let client = dial(&agent, &to);
    let (mut server, _) = listener.accept().unwrap();
    drop(client);
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}

#[test]
fn nobody_there_is_told_and_the_connection_is_still_the_agents() {
    let agent = Agent::start();
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let cases = [
        (DialTarget::Tcp { address: None, port: free }, ErrorCode::ConnectionRefused),
        (DialTarget::Tcp { address: Some("192.0.2.1".parse().unwrap()), port: 80 }, ErrorCode::BadArgument),
        (DialTarget::Unix { path: "/nonexistent/socket".parse().unwrap() }, ErrorCode::NotFound),
    ];
    for (to, expected) in cases {
        let refused = agent.connect().dial(&to);
        assert!(matches!(&refused, Err(SessionError::Refused { code, .. }) if *code == expected), "{refused:?}");
    }
}
