//! Processes that outlive their clients, against a real agent.

use std::io::Write;
use std::thread;

use session::{Attached, AttachedEvent, ErrorCode, ExecRequest, ExitStatus, ProcessInfo, SessionError, Stdio, TtySize};

use crate::support::{Agent, eventually, group_lives, request, shell, stat, with_pipes};

const KEPT: usize = 1 << 20;

fn start(agent: &Agent, request: &ExecRequest) -> ProcessInfo {
    agent.connect().start_process(request).unwrap()
}

/// Reads until the text has come; all of standard output so far.
fn read_until(attached: &mut Attached, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        match attached.next_event().unwrap() {
            AttachedEvent::Stdout(bytes) => seen += std::str::from_utf8(&bytes).unwrap(),
            other => panic!("{other:?} before `{text}`, after `{seen}`"),
        }
    }
    seen
}

/// Reads to the exit: how much was skipped, both outputs, and how it ended.
fn read_all(attached: &mut Attached) -> (u64, Vec<u8>, Vec<u8>, ExitStatus) {
    let (mut missed, mut stdout, mut stderr) = (0, Vec::new(), Vec::new());
    loop {
        match attached.next_event().unwrap() {
            AttachedEvent::Stdout(bytes) => stdout.extend(bytes),
            AttachedEvent::Stderr(bytes) => stderr.extend(bytes),
            AttachedEvent::Skipped { bytes } => missed += bytes,
            AttachedEvent::Exited { status, .. } => return (missed, stdout, stderr, status),
        }
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, SessionError>) -> ErrorCode {
    match result {
        Err(SessionError::Refused { code, .. }) => code,
        other => panic!("not refused: {other:?}"),
    }
}

fn wait_for_end(agent: &Agent, id: u64) {
    eventually("it has ended", || agent.connect().show_process(id).unwrap().status.is_some());
}

#[test]
fn a_process_goes_on_without_clients_and_is_found_again() {
    let agent = Agent::start();
    let info = start(&agent, &with_pipes(shell("echo one; echo two >&2; read word; echo $word; exit 3")));
    assert_eq!((info.status, info.tty), (None, None));
    let mut first = agent.connect().attach(info.id).unwrap();
    read_until(&mut first, "one\n");
    drop(first);
    assert!(group_lives(info.pid), "who leaves takes nothing with him");
    let mut writer = agent.connect().feed(info.id, false).unwrap();
    writer.write_all(b"three\n").unwrap();
    writer.finish().unwrap();
    wait_for_end(&agent, info.id);
    // Kept: the output and the exit, for as many as want it.
    for _ in 0..2 {
        let (skipped, stdout, stderr, status) = read_all(&mut agent.connect().attach(info.id).unwrap());
        assert_eq!((skipped, status), (0, ExitStatus::Code(3)));
        assert_eq!((stdout.as_slice(), stderr.as_slice()), (&b"one\nthree\n"[..], &b"two\n"[..]));
    }
    let listed = agent.connect().list_processes().unwrap();
    assert_eq!(listed, [ProcessInfo { status: Some(ExitStatus::Code(3)), ..info.clone() }]);
    agent.connect().forget_process(info.id).unwrap();
    assert_eq!(code(agent.connect().attach(info.id)), ErrorCode::NoSuchProcess);
    assert_eq!(agent.connect().list_processes().unwrap(), []);
}

#[test]
fn the_last_mebibyte_is_kept_and_the_rest_counted() {
    let agent = Agent::start();
    let info = start(&agent, &shell("head -c 5000000 /dev/zero; printf end"));
    wait_for_end(&agent, info.id);
    let (skipped, stdout, _, status) = read_all(&mut agent.connect().attach(info.id).unwrap());
    assert_eq!(status, ExitStatus::Code(0));
    assert!(stdout.len() >= KEPT && stdout.ends_with(b"\0end"), "{}", stdout.len());
    assert_eq!(skipped + stdout.len() as u64, 5_000_003);
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody() {
    let agent = Agent::start();
    let info = start(&agent, &with_pipes(shell("read go; head -c 20000000 /dev/zero; printf end; read go")));
    let mut slow = agent.connect().attach(info.id).unwrap();
    let mut quick = agent.connect().attach(info.id).unwrap();
    let mut writer = agent.connect().feed(info.id, false).unwrap();
    writer.write_all(b"go\n").unwrap();
    let mut seen = 0;
    while seen < 20_000_003 {
        match quick.next_event().unwrap() {
            AttachedEvent::Stdout(bytes) => seen += bytes.len() as u64,
            AttachedEvent::Skipped { bytes } => seen += bytes,
            other => panic!("{other:?}"),
        }
    }
    writer.write_all(b"go\n").unwrap();
    writer.finish().unwrap();
    wait_for_end(&agent, info.id);
    let (skipped, stdout, _, status) = read_all(&mut slow);
    assert_eq!(status, ExitStatus::Code(0));
    assert!(skipped > 0 && stdout.ends_with(b"\0end"));
    assert_eq!(skipped + stdout.len() as u64, 20_000_003);
}

#[test]
fn input_is_waited_for_and_can_be_over() {
    let agent = Agent::start();
    let info = start(&agent, &with_pipes(request(&["sha256sum"])));
    let bytes = vec![7; 3 << 20];
    for (part, close) in [(&bytes[..1 << 20], false), (&bytes[1 << 20..], true)] {
        let mut writer = agent.connect().feed(info.id, close).unwrap();
        writer.write_all(part).unwrap();
        writer.finish().unwrap();
    }
    let (_, stdout, _, _) = read_all(&mut agent.connect().attach(info.id).unwrap());
    let expected = agent.connect().output(&request(&["sha256sum"]), &bytes, 1 << 10).unwrap().stdout;
    assert_eq!(stdout, expected);
    assert_eq!(code(agent.connect().feed(info.id, false)), ErrorCode::Ended);
    let silent = start(&agent, &request(&["sleep", "1000"]));
    assert_eq!(code(agent.connect().feed(silent.id, false)), ErrorCode::BadArgument);
}

#[test]
fn input_is_over_when_who_wanted_to_close_it_leaves() {
    let agent = Agent::start();
    let info = start(&agent, &with_pipes(request(&["cat"])));
    let mut attached = agent.connect().attach(info.id).unwrap();
    for (text, close) in [("left open,", false), ("closed", true)] {
        let mut writer = agent.connect().feed(info.id, close).unwrap();
        writer.write_all(text.as_bytes()).unwrap();
        read_until(&mut attached, text);
        drop(writer);
    }
    let (_, _, _, status) = read_all(&mut attached);
    assert_eq!(status, ExitStatus::Code(0));
}

#[test]
fn who_feeds_one_that_does_not_read_hears_of_its_end() {
    let agent = Agent::start();
    let info = start(&agent, &with_pipes(request(&["sleep", "1000"])));
    let mut writer = agent.connect().feed(info.id, false).unwrap();
    let feeder = thread::spawn(move || writer.write_all(&vec![0; 4 << 20]).unwrap_err().to_string());
    // A pipe is full before the window is; the feeder then waits in the agent.
    eventually("the pipe is full", || stat(u32::try_from(info.pid).unwrap()).is_some_and(|(state, ..)| state == 'S'));
    agent.connect().signal_process(info.id, 9).unwrap();
    assert!(feeder.join().unwrap().contains("has ended"));
    agent.connect().ping().unwrap();
}

#[test]
fn a_terminal_can_be_resized_and_ended_by_id() {
    let agent = Agent::start();
    let size = TtySize { rows: 30, cols: 100 };
    // A shell whose `read` a signal interrupts has read nothing.
    let script = "trap 'stty size' WINCH; stty size; until read line; do :; done; echo got $line; echo over";
    let info = start(&agent, &ExecRequest { stdio: Stdio::Tty(size), ..shell(script) });
    assert_eq!(info.tty, Some(size));
    let mut attached = agent.connect().attach(info.id).unwrap();
    read_until(&mut attached, "30 100\r\n");
    let larger = TtySize { rows: 40, cols: 120 };
    agent.connect().resize_process(info.id, larger).unwrap();
    assert_eq!(agent.connect().show_process(info.id).unwrap().tty, Some(larger));
    let mut writer = agent.connect().feed(info.id, true).unwrap();
    writer.write_all(b"word\r").unwrap();
    writer.finish().unwrap();
    let seen = read_until(&mut attached, "over\r\n");
    assert!(seen.contains("got word\r\n") && seen.contains("40 120\r\n"), "{seen}");
    let plain = start(&agent, &request(&["sleep", "1000"]));
    assert_eq!(code(agent.connect().resize_process(plain.id, size)), ErrorCode::BadArgument);
}

#[test]
fn signals_and_limits_end_the_whole_group() {
    let agent = Agent::start();
    let both = "sleep 1000 & sleep 1000";
    let info = start(&agent, &shell(both));
    let mut connection = agent.connect();
    assert_eq!(code(connection.signal_process(info.id, 65)), ErrorCode::BadArgument);
    connection.signal_process(info.id, 15).unwrap();
    let (.., status) = read_all(&mut agent.connect().attach(info.id).unwrap());
    assert_eq!(status, ExitStatus::Signal(15));
    eventually("the group is gone", || !group_lives(info.pid));
    assert_eq!(code(connection.signal_process(info.id, 15)), ErrorCode::Ended);
    let limited = start(&agent, &ExecRequest { timeout_ms: Some(100), ..shell(both) });
    wait_for_end(&agent, limited.id);
    let shown = connection.show_process(limited.id).unwrap();
    assert!(shown.timed_out && shown.status == Some(ExitStatus::Signal(9)), "{shown:?}");
    let forgotten = start(&agent, &shell(both));
    connection.forget_process(forgotten.id).unwrap();
    eventually("who is forgotten is killed", || !group_lives(forgotten.pid));
    assert_eq!(code(connection.start_process(&request(&["/no/such"]))), ErrorCode::NotFound);
}

#[test]
fn the_oldest_that_ended_make_room() {
    let agent = Agent::start();
    let first = start(&agent, &request(&["sleep", "1000"]));
    let ended = start(&agent, &request(&["true"]));
    wait_for_end(&agent, ended.id);
    for _ in 2..128 {
        start(&agent, &request(&["sleep", "1000"]));
    }
    let last = start(&agent, &request(&["sleep", "1000"]));
    assert_eq!(code(agent.connect().show_process(ended.id)), ErrorCode::NoSuchProcess);
    agent.connect().show_process(first.id).unwrap();
    assert_eq!(code(agent.connect().start_process(&request(&["true"]))), ErrorCode::TooMany);
    agent.connect().forget_process(last.id).unwrap();
    start(&agent, &request(&["true"]));
}
