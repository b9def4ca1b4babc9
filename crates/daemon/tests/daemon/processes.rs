//! Processes of a sandbox over HTTP.

use serde_json::{Value, json};

use crate::support::{World, wait_until};

fn place() -> (World, String) {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    (world, format!("/v1/sandboxes/{id}/processes"))
}

fn start(world: &World, path: &str, body: Value) -> (String, Value) {
    let info = world.post(path, body, 201);
    (format!("{path}/{}", info["id"].as_str().unwrap()), info)
}

#[test]
fn a_process_outlives_its_clients_and_is_followed_from_its_beginning() {
    let (mut world, all) = place();
    let body = json!({ "args": ["sh", "-c", "echo out; echo err >&2; read line; echo got $line $A; exit 3"],
                       "env": { "A": "b" }, "cwd": "/" });
    let (path, info) = start(&world, &all, body);
    assert_eq!((&info["status"], &info["cwd"], &info["tty"]), (&json!("running"), &json!("/"), &Value::Null));
    assert!(info["args"][0] == "sh" && info.get("exit_code").is_none(), "{info}");
    assert!(info["started_at_unix"].as_f64().unwrap() > 1e9);
    assert_eq!(world.get(&all), json!([info]));
    let mut early = world.stream("GET", &format!("{path}/output"), None);
    early.until("event: started");
    early.until(r#""data":"out\n""#);
    drop(early);
    // It is the sandbox's, and not the daemon's.
    world.kill_daemon();
    world.start();
    let mut late = world.stream("GET", &format!("{path}/output"), None);
    late.until(r#""data":"out\n""#);
    world.send("POST", &format!("{path}/stdin"), b"he").expect(204);
    world.send("POST", &format!("{path}/stdin?close=true"), b"llo\n").expect(204);
    late.until(r#""data":"got hello b\n""#);
    late.until("event: exit");
    assert!(late.until("data:").contains(r#"{"exit_code":3,"timed_out":false}"#));
    let ended = world.get(&path);
    assert_eq!((&ended["status"], &ended["exit_code"]), (&json!("exited"), &json!(3)));
    let again = world.stream("GET", &format!("{path}/output"), None).rest();
    assert!(again.contains("text/event-stream") && again.contains(r#""data":"err\n""#), "{again}");
    assert_eq!(world.send("POST", &format!("{path}/stdin"), b"x").code(409), "process_ended");
    assert_eq!(world.ask("POST", &format!("{path}/signal"), Some(json!({ "signal": 15 }))).code(409), "process_ended");
    world.ask("DELETE", &path, None).expect(204);
    assert_eq!(world.ask("GET", &path, None).code(404), "process_not_found");
    assert_eq!(world.get(&all), json!([]));
}

#[test]
fn who_follows_is_told_when_the_daemon_ends() {
    let (mut world, all) = place();
    let (path, _) = start(&world, &all, json!({ "args": ["sleep", "1000"] }));
    let mut output = world.stream("GET", &format!("{path}/output"), None);
    output.until("event: started");
    assert_eq!(world.stop_daemon(), Some(0));
    let last = output.rest();
    assert!(last.contains("event: error") && last.contains(r#""code":"stopping""#), "{last}");
}

#[test]
fn a_process_is_signalled_resized_and_killed() {
    let (world, all) = place();
    let tty = json!({ "args": ["sh", "-c", "trap 'stty size' WINCH; stty size; while :; do sleep 0.02; done"],
                      "tty": { "rows": 24, "cols": 80 } });
    let (path, info) = start(&world, &all, tty);
    assert_eq!(info["tty"], json!({ "rows": 24, "cols": 80 }));
    let mut output = world.stream("GET", &format!("{path}/output"), None);
    output.until("24 80");
    world.ask("POST", &format!("{path}/resize"), Some(json!({ "rows": 50, "cols": 132 }))).expect(204);
    output.until("50 132");
    let signal = |signal: Value| world.ask("POST", &format!("{path}/signal"), Some(json!({ "signal": signal })));
    assert_eq!(signal(json!("DANCE")).code(400), "invalid_request");
    assert_eq!(signal(json!(true)).code(422), "invalid_request");
    signal(json!("SIGKILL")).expect(204);
    output.until("event: exit");
    assert!(output.until("data:").contains(r#"{"exit_code":-9,"signal":9,"timed_out":false}"#));
    let (path, info) = start(&world, &all, json!({ "args": ["sleep", "1000"] }));
    let pid = info["pid"].as_i64().unwrap();
    assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(
        world.ask("POST", &format!("{path}/resize"), Some(json!({ "rows": 1, "cols": 1 }))).code(400),
        "agent_refused"
    );
    world.ask("DELETE", &path, None).expect(204);
    wait_until("its end", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn input_that_is_all_there_is_comes_to_its_end() {
    let (world, all) = place();
    let (path, _) = start(&world, &all, json!({ "args": ["cat"], "stdin_base64": "aGkA" }));
    let output = world.stream("GET", &format!("{path}/output"), None).rest();
    assert!(output.contains(r#""data":"hi\u0000""#) && output.contains(r#""exit_code":0"#), "{output}");
    let much = "x".repeat(1 << 20);
    let (path, _) = start(&world, &all, json!({ "args": ["sh", "-c", "sleep 0.1; wc -c"], "stdin": much }));
    let output = world.stream("GET", &format!("{path}/output"), None).rest();
    assert!(output.contains(r#""data":"1048576\n""#), "{output}");
    wait_until("nobody feeds it any more", || world.guest_threads() == 0);
    let (path, _) = start(&world, &all, json!({ "args": ["sleep", "1000"], "timeout_secs": 0.05 }));
    let output = world.stream("GET", &format!("{path}/output"), None).rest();
    assert!(output.contains(r#""signal":9,"timed_out":true"#), "{output}");
}

#[test]
fn what_cannot_be_started_or_found_is_told_apart_and_input_may_be_long() {
    let (world, all) = place();
    let post = |body: Value| world.ask("POST", &all, Some(body));
    assert_eq!(post(json!({ "args": ["/no/such/program"] })).code(400), "program_not_found");
    assert_eq!(post(json!({ "args": ["/etc/passwd"] })).code(400), "program_not_executable");
    assert_eq!(post(json!({ "args": [] })).code(400), "invalid_request");
    assert_eq!(post(json!({ "args": ["id"], "user": "nobody-here" })).code(400), "agent_refused");
    for missing in ["7", "x", "-1", "99999999999999999999999"] {
        assert_eq!(world.ask("GET", &format!("{all}/{missing}"), None).code(404), "process_not_found");
        assert_eq!(world.ask("GET", &format!("{all}/{missing}/output"), None).code(404), "process_not_found");
        assert_eq!(world.ask("DELETE", &format!("{all}/{missing}"), None).code(404), "process_not_found");
        assert_eq!(world.send("POST", &format!("{all}/{missing}/stdin"), b"x").code(404), "process_not_found");
    }
    let (path, _) = start(&world, &all, json!({ "args": ["cat"] }));
    let much = vec![b'x'; (16 << 20) + 1];
    let mut reader = world.stream("GET", &format!("{path}/output"), None);
    let answer =
        std::thread::scope(|scope| scope.spawn(|| world.send("POST", &format!("{path}/stdin"), &much)).join().unwrap());
    answer.expect(204);
    world.ask("DELETE", &path, None).expect(204);
    reader.rest();
}
