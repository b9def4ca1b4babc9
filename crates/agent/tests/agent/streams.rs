//! Bytes, signals and terminals inside a session.

use std::io::{ErrorKind, Write};
use std::thread;

use session::{Event, Exec, ExecRequest, ExitStatus, SessionError, Stdio, TtySize};

use crate::support::{Agent, eventually, group_lives, request, shell, stat, with_pipes};

/// Bytes that are nowhere the same, so that a lost or doubled piece shows.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let word = std::iter::from_fn(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some(state.to_le_bytes())
    });
    word.flatten().take(length).collect()
}

/// Reads output until the text appears in it.
fn read_until(exec: &mut Exec, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        match exec.next_event().unwrap() {
            Event::Stdout(bytes) => seen += std::str::from_utf8(&bytes).unwrap(),
            other => panic!("{other:?} before `{text}`, after `{seen}`"),
        }
    }
    seen
}

fn wait_for_exit(exec: &mut Exec) -> ExitStatus {
    loop {
        if let Event::Exited { status, .. } = exec.next_event().unwrap() {
            return status;
        }
    }
}

#[test]
fn twelve_mebibytes_pass_through_cat_unchanged() {
    let agent = Agent::start();
    let input = pattern(12 << 20);
    let output = agent.connect().output(&request(&["cat"]), &input, 16 << 20).unwrap();
    assert_eq!(output.status, ExitStatus::Code(0));
    assert!(output.stdout == input, "{} bytes came back, changed", output.stdout.len());
}

#[test]
fn a_signal_is_delivered_while_stdin_is_stuffed() {
    let agent = Agent::start();
    let mut exec = agent.exec(&with_pipes(shell("echo ready; exec sleep 1000")));
    read_until(&mut exec, "ready");
    let mut stdin = exec.stdin();
    let control = exec.control();
    let writer = thread::spawn(move || stdin.write_all(&pattern(4 << 20)).unwrap_err().kind());
    // The writer fills the pipe and the window and then waits for credit that never comes.
    control.signal(15).unwrap();
    assert_eq!(wait_for_exit(&mut exec), ExitStatus::Signal(15));
    assert_eq!(writer.join().unwrap(), ErrorKind::BrokenPipe);
    assert!(matches!(control.signal(15), Err(SessionError::Ended)));
}

#[test]
fn input_for_a_process_that_does_not_read_it_is_no_error() {
    let agent = Agent::start();
    let input = pattern(2 << 20);
    let output = agent.connect().output(&shell("exec 0<&-; sleep 0.2; exit 9"), &input, 1 << 10).unwrap();
    assert_eq!(output.status, ExitStatus::Code(9));
}

#[test]
fn stdin_is_empty_unless_it_is_asked_for() {
    let agent = Agent::start();
    assert_eq!(agent.run(&request(&["cat"])).status, ExitStatus::Code(0));
    let mut exec = agent.exec(&with_pipes(request(&["cat"])));
    exec.stdin().close().unwrap();
    assert_eq!(wait_for_exit(&mut exec), ExitStatus::Code(0));
}

#[test]
fn a_client_that_leaves_takes_the_process_group_with_it() {
    let agent = Agent::start();
    let mut exec = agent.exec(&with_pipes(shell("sleep 1000 & echo ready; sleep 1000")));
    read_until(&mut exec, "ready");
    let (group, stdin) = (exec.pid, exec.stdin());
    assert!(group_lives(group));
    drop(exec);
    eventually("the group is killed", || !group_lives(group));
    drop(stdin);
}

#[test]
fn a_gibibyte_of_output_costs_the_agent_no_memory() {
    let agent = Agent::start();
    let mut exec = agent.exec(&shell("head -c 1073741824 /dev/zero"));
    let mut total = 0;
    let status = loop {
        match exec.next_event().unwrap() {
            Event::Stdout(bytes) => total += bytes.len(),
            Event::Stderr(bytes) => panic!("{}", String::from_utf8_lossy(&bytes)),
            Event::Exited { status, .. } => break status,
        }
    };
    assert_eq!((status, total), (ExitStatus::Code(0), 1 << 30));
    let peak = agent.status_line("VmHWM:");
    let peak_kib: u32 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 32 << 10, "the agent used {peak_kib} KiB");
}

#[test]
fn a_client_that_does_not_read_stops_the_process_not_the_signal() {
    let agent = Agent::start();
    let mut exec = agent.exec(&shell("yes"));
    // Nobody reads: the pipes fill up and the process waits. Only then is it signalled.
    let sleeping = || stat(u32::try_from(exec.pid).unwrap()).is_some_and(|(state, ..)| state == 'S');
    eventually("the process waits for the client", sleeping);
    exec.control().signal(2).unwrap();
    eventually("the signal has ended it", || !group_lives(exec.pid));
    assert_eq!(wait_for_exit(&mut exec), ExitStatus::Signal(2));
}

#[test]
fn a_terminal_is_one_and_has_a_size_that_can_change() {
    let agent = Agent::start();
    let size = TtySize { rows: 33, cols: 121 };
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM && tty >&2
        trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.1; done";
    let mut exec = agent.exec(&ExecRequest { stdio: Stdio::Tty(size), ..shell(script) });
    let before = read_until(&mut exec, "ready");
    assert!(before.starts_with("33 121\r\nxterm-256color\r\n/dev/pts/"), "{before:?}");
    exec.control().resize(TtySize { rows: 50, cols: 90 }).unwrap();
    read_until(&mut exec, "50 90\r\n");
    assert_eq!(wait_for_exit(&mut exec), ExitStatus::Code(4));
}

#[test]
fn a_terminal_echoes_interrupts_and_ends() {
    let agent = Agent::start();
    let tty = Stdio::Tty(TtySize { rows: 24, cols: 80 });
    let mut exec = agent.exec(&ExecRequest { stdio: tty, ..request(&["cat"]) });
    let mut stdin = exec.stdin();
    stdin.write_all(b"hello\r").unwrap();
    assert_eq!(read_until(&mut exec, "hello\r\nhello\r\n"), "hello\r\nhello\r\n");
    stdin.close().unwrap();
    assert_eq!(wait_for_exit(&mut exec), ExitStatus::Code(0));

    let mut exec = agent.exec(&ExecRequest { stdio: tty, ..shell("echo ready; exec sleep 1000") });
    read_until(&mut exec, "ready");
    exec.stdin().write_all(b"\x03").unwrap();
    assert_eq!(wait_for_exit(&mut exec), ExitStatus::Signal(2));
}

#[test]
fn the_last_words_of_a_terminal_are_never_lost() {
    let agent = Agent::start();
    let tty = Stdio::Tty(TtySize { rows: 24, cols: 80 });
    for _ in 0..50 {
        let output = agent.run(&ExecRequest { stdio: tty, ..shell("printf last-words") });
        assert_eq!(output.stdout, b"last-words");
    }
}

#[test]
fn more_output_than_wanted_ends_the_process() {
    let agent = Agent::start();
    let result = agent.connect().output(&request(&["yes"]), &[], 1 << 20);
    assert!(matches!(result, Err(SessionError::TooMuchOutput { limit_bytes: 0x10_0000 })));
    agent.connect().ping().unwrap();
}
