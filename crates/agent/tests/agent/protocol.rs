//! Who may connect, and what happens to those who do not speak the protocol.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use proto::codec::{Channel, read_message, write_frame, write_message};
use proto::guest::{GENERATION, Reply, Request, STDIN_WINDOW};
use session::{Connection, ErrorCode, ExitStatus, SessionError};

use crate::support::{Agent, PATIENCE, eventually, group_lives, request, shell, with_pipes};

fn hello(generation: u16) -> Request {
    Request::Hello { generation, token: None }
}

fn greeted(agent: &Agent) -> UnixStream {
    let mut stream = agent.stream();
    write_message(&mut stream, &hello(GENERATION)).unwrap();
    assert!(matches!(read_message(&mut stream), Ok(Some(Reply::Hello(_)))));
    stream
}

/// The stream ends with this refusal and nothing after it.
fn assert_refused(mut stream: impl Read, wanted: ErrorCode) {
    let reply: Reply = read_message(&mut stream).unwrap().unwrap();
    assert!(matches!(reply, Reply::Error { code, .. } if code == wanted), "{reply:?}");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn the_hello_says_who_is_there() {
    let agent = Agent::start();
    let mut connection = agent.connect();
    assert_eq!(connection.hello().generation, GENERATION);
    assert_eq!(connection.hello().agent, env!("CARGO_PKG_VERSION"));
    assert_eq!(connection.hello().kernel, rustix::system::uname().release().to_str().unwrap());
    assert!(connection.hello().boot_ms > 0);
    connection.ping().unwrap();
    connection.ping().unwrap();
}

#[test]
fn the_lower_generation_is_agreed_on() {
    let agent = Agent::start();
    let mut stream = agent.stream();
    write_message(&mut stream, &hello(u16::MAX)).unwrap();
    let reply: Reply = read_message(&mut stream).unwrap().unwrap();
    assert!(matches!(reply, Reply::Hello(hello) if hello.generation == GENERATION));
    let mut stream = agent.stream();
    write_message(&mut stream, &hello(0)).unwrap();
    assert_refused(stream, ErrorCode::Protocol);
}

#[test]
fn garbage_is_answered_and_ends_only_its_own_connection() {
    let agent = Agent::start();
    let mut bystander = agent.connect();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[3, 0, 0, 0, 0, b'{', b'}', b'}'], &[0, 0, 0, 0, 9]] {
        let mut stream = agent.stream();
        stream.write_all(garbage).unwrap();
        assert_refused(&stream, ErrorCode::Protocol);
        let mut stream = greeted(&agent);
        stream.write_all(garbage).unwrap();
        assert_refused(&stream, ErrorCode::Protocol);
    }
    bystander.ping().unwrap();
}

#[test]
fn a_client_that_never_says_hello_is_sent_away() {
    let agent = Agent::start();
    let mut stream = agent.stream();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A byte of a frame does not buy more time.
    stream.write_all(&[9]).unwrap();
    assert_refused(stream, ErrorCode::Protocol);
}

#[test]
fn messages_out_of_place_end_the_connection() {
    let agent = Agent::start();
    let mut stream = agent.stream();
    write_message(&mut stream, &Request::Ping).unwrap();
    assert_refused(stream, ErrorCode::Protocol);
    for misplaced in [Request::Signal { signal: 9 }, hello(GENERATION)] {
        let mut stream = greeted(&agent);
        write_message(&mut stream, &misplaced).unwrap();
        assert_refused(stream, ErrorCode::Protocol);
    }
    let mut stream = greeted(&agent);
    write_frame(&mut stream, Channel::Stdin, b"x").unwrap();
    assert_refused(stream, ErrorCode::Protocol);
}

#[test]
fn a_client_that_overruns_the_window_loses_its_process() {
    let agent = Agent::start();
    let mut stream = greeted(&agent);
    write_message(&mut stream, &Request::Exec(with_pipes(request(&["sleep", "1000"])))).unwrap();
    let reply: Reply = read_message(&mut stream).unwrap().unwrap();
    let Reply::Started { pid } = reply else { panic!("{reply:?}") };
    for _ in 0..=STDIN_WINDOW / 65_536 + 1 {
        write_frame(&mut stream, Channel::Stdin, &[0; 65_536]).unwrap();
    }
    // A pipe took its share and was credited before the agent lost patience.
    loop {
        match read_message(&mut stream).unwrap() {
            Some(Reply::StdinCredit { .. }) => {}
            Some(Reply::Error { code: ErrorCode::Protocol, .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    eventually("the process is killed", || !group_lives(pid));
}

#[test]
fn a_signal_that_is_none_ends_the_session_and_not_the_connection() {
    let agent = Agent::start();
    let mut stream = greeted(&agent);
    write_message(&mut stream, &Request::Exec(request(&["sleep", "1000"]))).unwrap();
    let reply: Reply = read_message(&mut stream).unwrap().unwrap();
    let Reply::Started { pid } = reply else { panic!("{reply:?}") };
    write_message(&mut stream, &Request::Signal { signal: 65 }).unwrap();
    let reply: Reply = read_message(&mut stream).unwrap().unwrap();
    assert!(matches!(reply, Reply::Error { code: ErrorCode::BadArgument, .. }));
    eventually("the process is killed", || !group_lives(pid));
    write_message(&mut stream, &Request::Ping).unwrap();
    assert_eq!(read_message::<Reply>(&mut stream).unwrap(), Some(Reply::Done));
}

#[test]
fn what_crosses_the_end_of_a_session_is_forgiven() {
    let agent = Agent::start();
    let mut stream = greeted(&agent);
    // All at once, so that the last three are on the way when the process ends.
    write_message(&mut stream, &Request::Exec(with_pipes(request(&["true"])))).unwrap();
    write_frame(&mut stream, Channel::Stdin, b"unread").unwrap();
    let mut exited = false;
    while !exited {
        let frame = proto::codec::read_frame(&mut stream).unwrap().unwrap();
        exited = frame.channel == Channel::Message && matches!(frame.message(), Ok(Reply::Exited { .. }));
    }
    write_frame(&mut stream, Channel::Stdin, b"late").unwrap();
    write_message(&mut stream, &Request::Signal { signal: 15 }).unwrap();
    write_message(&mut stream, &Request::Ping).unwrap();
    assert_eq!(read_message::<Reply>(&mut stream).unwrap(), Some(Reply::Done));
}

#[test]
fn over_tcp_only_the_token_opens() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, "correct horse\n").unwrap();
    let agent = Agent::start_with(&["--token-file", token.to_str().unwrap()], |_| format!("tcp:{free}"));
    let open = |token| Connection::open(TcpStream::connect(free).unwrap(), token, PATIENCE);
    for wrong in [None, Some(""), Some("correct hors"), Some("correct horse\n"), Some("wrong horse!!")] {
        match open(wrong) {
            Err(SessionError::Refused { code: ErrorCode::Denied, .. }) => {}
            other => panic!("{wrong:?} was not denied: {other:?}"),
        }
    }
    let output = open(Some("correct horse")).unwrap().output(&shell("exit 2"), &[], 0).unwrap();
    assert_eq!(output.status, ExitStatus::Code(2));
    drop(agent);
}

#[test]
fn an_agent_without_its_token_does_not_serve() {
    let mut agent = std::process::Command::new(env!("CARGO_BIN_EXE_forkd-agent"));
    let output = agent.args(["--serve", "tcp:127.0.0.1:0", "--token-file", "/dev/null"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("forkd-agent: fatal: /dev/null is empty"));
}

#[test]
fn poweroff_is_answered_before_it_ends_everything() {
    for reboot in [false, true] {
        let mut agent = Agent::start();
        let exec = agent.exec(&shell("sleep 1000 & sleep 1000"));
        let mut connection = agent.connect();
        if reboot { connection.reboot() } else { connection.poweroff() }.unwrap();
        assert!(agent.wait().success());
        eventually("nothing it started is left", || !group_lives(exec.pid));
    }
}

#[test]
fn a_thousand_connections_are_served_and_more_are_told() {
    let agent = Agent::start();
    let mut held: Vec<_> = (0..1024).map(|_| greeted(&agent)).collect();
    let refused = Connection::open(agent.stream(), None, Duration::from_secs(20));
    assert!(matches!(refused, Err(SessionError::Refused { code: ErrorCode::Failed, .. })), "{refused:?}");
    held.pop();
    eventually("the free place is taken", || Connection::open(agent.stream(), None, PATIENCE).is_ok());
}
