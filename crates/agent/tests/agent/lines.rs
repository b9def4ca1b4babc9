//! The line protocol of published clients, with a real agent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use serde_json::{Value, json};
use session::lines::{MAX_LINE, MAX_OUTPUT, ask};

use crate::support::{Agent, PATIENCE, eventually};

/// An agent, and where it speaks in lines.
fn agent() -> (Agent, SocketAddr) {
    // Free a moment ago.
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agent = Agent::start_with(&["--lines", &at.to_string()], |dir| format!("unix:{}", dir.join("agent").display()));
    eventually("it speaks in lines", || TcpStream::connect(at).is_ok());
    (agent, at)
}

fn answer(at: SocketAddr, question: &Value) -> Value {
    ask(at, question, PATIENCE).unwrap()
}

/// What comes back for bytes, to the end of the connection.
fn raw(at: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    // It may be hung up before all is said.
    drop(stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write)));
    let mut said = String::new();
    drop(stream.read_to_string(&mut said));
    said
}

#[test]
fn one_line_asks_and_one_answers() {
    let (_agent, at) = agent();
    let pong = answer(at, &json!({ "action": "ping" }));
    assert_eq!(
        (&pong["pong"], &pong["numpy_version"], &pong["agent_lang"]),
        (&json!(true), &json!("not-installed"), &json!("python"))
    );
    let ran =
        answer(at, &json!({ "action": "exec", "args": ["sh", "-c", "echo out; echo err >&2; exit 7"], "timeout": 10 }));
    assert_eq!((&ran["stdout"], &ran["stderr"], &ran["exit_code"]), (&json!("out\n"), &json!("err\n"), &json!(7)));
    let killed = answer(at, &json!({ "action": "exec", "args": ["sh", "-c", "kill -9 $$"] }));
    assert_eq!(killed["exit_code"], -9);
    let value = answer(at, &json!({ "action": "eval", "code": "print(1); 6 * 7" }));
    assert_eq!((&value["result"], &value["stdout"], &value["exit_code"]), (&json!("42"), &json!("1\n"), &json!(0)));
    assert!(value.get("error").is_none(), "clients look whether it is there: {value}");
    let raised = answer(at, &json!({ "action": "eval", "code": "1 / 0" }));
    assert!(raised["error"].as_str().unwrap().contains("ZeroDivisionError"), "{raised}");
    assert!(raised["traceback"].as_str().unwrap().contains("Traceback") && raised["exit_code"] == 1, "{raised}");
}

#[test]
fn what_fails_is_an_error_without_an_output() {
    let (_agent, at) = agent();
    for question in [
        json!({ "action": "exec", "args": [] }),
        json!({ "action": "exec", "args": ["/nowhere"] }),
        json!({ "action": "exec", "args": ["sleep", "60"], "timeout": 0.2 }),
        json!({ "action": "fly" }),
        json!([]),
    ] {
        let failed = answer(at, &question);
        assert!(failed["error"].is_string() && failed["exit_code"] == 1 && failed.get("stdout").is_none(), "{failed}");
    }
}

#[test]
fn what_is_no_question_is_refused_and_costs_nothing() {
    let (agent, at) = agent();
    let said = raw(at, b"POST / HTTP/1.1\r\nhost: x\r\n\r\n{\"action\":\"exec\",\"args\":[\"touch\",\"/tmp/x\"]}\n");
    assert!(said.contains("error") && said.lines().count() == 1, "only the first line counts: {said}");
    assert_eq!(raw(at, &vec![b'x'; 2 * MAX_LINE]), "", "a line without end");
    assert_eq!(raw(at, b""), "");
    // As many as may be there, which say nothing, and one more.
    let idle: Vec<_> = (0..32).map(|_| TcpStream::connect(at).unwrap()).collect();
    eventually("no more are let in", || raw(at, b"{\"action\":\"ping\"}\n").is_empty());
    drop(idle);
    eventually("and now they are", || raw(at, b"{\"action\":\"ping\"}\n").contains("pong"));
    drop(agent);
}

#[test]
fn an_output_is_cut_and_the_command_goes_on() {
    let (_agent, at) = agent();
    let script = format!("head -c {} /dev/zero | tr '\\0' x; exit 3", MAX_OUTPUT + 1);
    let ran = answer(at, &json!({ "action": "exec", "args": ["sh", "-c", script] }));
    assert_eq!(ran["stdout"].as_str().unwrap().len(), MAX_OUTPUT);
    assert_eq!((&ran["stdout_truncated"], &ran["exit_code"]), (&json!(true), &json!(3)));
}

/// A client that listens while its command runs.
struct Streaming {
    reader: BufReader<TcpStream>,
}

impl Streaming {
    fn start(at: SocketAddr, question: &Value) -> Self {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut streaming = Self { reader: BufReader::new(stream) };
        streaming.say(question);
        streaming
    }

    fn say(&mut self, value: &Value) {
        self.reader.get_mut().write_all(format!("{value}\n").as_bytes()).unwrap();
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or(Value::Null)
    }
}

#[test]
fn a_stream_is_heard_fed_and_stopped() {
    let (_agent, at) = agent();
    let mut cat = Streaming::start(at, &json!({ "action": "stream", "args": ["cat"], "cwd": "/" }));
    let started = cat.next();
    assert!(
        started["stream"] == "started" && started["pid"].as_i64() > Some(0) && started["pty"] == false,
        "{started}"
    );
    cat.say(&json!({ "in": "h\u{e9}llo\n" }));
    assert_eq!(cat.next(), json!({ "out": "h\u{e9}llo\n" }));
    cat.reader.get_ref().shutdown(Shutdown::Write).unwrap();
    assert_eq!(cat.next(), json!({ "exit_code": 0 }));
    assert_eq!(cat.next(), Value::Null, "and it is over");
    let mut sleep = Streaming::start(at, &json!({ "action": "stream", "args": ["sleep", "60"], "pty": true }));
    assert_eq!(sleep.next()["pty"], true);
    sleep.say(&json!({ "action": "stop" }));
    assert_eq!(sleep.next(), json!({ "exit_code": -9 }));
    let mut none = Streaming::start(at, &json!({ "action": "stream", "args": ["/nowhere"] }));
    assert_eq!(none.next()["exit_code"], 1);
}

#[test]
fn who_leaves_a_stream_takes_the_command_along() {
    let (agent, at) = agent();
    let mut yes = Streaming::start(at, &json!({ "action": "stream", "args": ["yes"] }));
    let pid = u32::try_from(yes.next()["pid"].as_i64().unwrap()).unwrap();
    assert!(crate::support::stat(pid).is_some());
    drop(yes);
    eventually("it is ended", || crate::support::stat(pid).is_none_or(|(state, ..)| state == 'Z'));
    drop(agent);
}
