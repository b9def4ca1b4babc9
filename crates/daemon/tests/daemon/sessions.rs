//! Commands that are followed: their input, signals and terminal, by the name that the stream gives them.

use serde_json::{Value, json};

use crate::support::{Lines, World, wait_until};

fn place() -> (World, String) {
    let world = World::open();
    let id = world.spawn(1).remove(0);
    (world, format!("/v1/sandboxes/{id}/exec"))
}

/// A command that is followed, and the path by which it is reached.
fn follow(world: &World, exec: &str, body: Value) -> (Lines, String) {
    let mut stream = world.stream("POST", exec, Some(body));
    stream.until("event: started");
    let started: Value = serde_json::from_str(stream.until("data:").trim_start_matches("data:")).unwrap();
    (stream, format!("{exec}/{}", started["session"].as_str().unwrap()))
}

#[test]
fn input_comes_as_long_as_it_is_given() {
    let (world, exec) = place();
    let body = json!({ "args": ["sh", "-c", "while read line; do echo got $line; done; echo end; exit 3"],
                       "stream": true, "open_stdin": true, "timeout_secs": null });
    let (mut stream, command) = follow(&world, &exec, body);
    world.send("POST", &format!("{command}/stdin"), b"one\n").expect(204);
    stream.until(r#""data":"got one\n""#);
    world.send("POST", &format!("{command}/stdin?close=true"), b"two\n").expect(204);
    let rest = stream.take_until("event: exit");
    assert!(rest.contains("got two") && rest.contains("end"), "{rest}");
    assert!(stream.until("data:").contains(r#""exit_code":3"#));
    wait_until("that it is forgotten", || world.send("POST", &format!("{command}/stdin"), b"three\n").status == 404);
    let much = vec![b'x'; 3 << 20];
    let body = json!({ "args": ["sh", "-c", "wc -c"], "stream": true, "open_stdin": true });
    let (mut stream, command) = follow(&world, &exec, body);
    world.send("POST", &format!("{command}/stdin?close=true"), &much).expect(204);
    stream.until(r#""data":"3145728\n""#);
}

#[test]
fn a_command_is_signalled_and_its_terminal_resized() {
    let (world, exec) = place();
    let script = "trap 'stty size' WINCH; trap 'echo heard; exit 5' INT; stty size; while :; do sleep 0.02; done";
    let body = json!({ "args": ["sh", "-c", script], "stream": true, "open_stdin": true,
                       "tty": { "rows": 24, "cols": 80 } });
    let (mut stream, command) = follow(&world, &exec, body);
    stream.until("24 80");
    world.ask("POST", &format!("{command}/resize"), Some(json!({ "rows": 50, "cols": 132 }))).expect(204);
    stream.until("50 132");
    world.ask("POST", &format!("{command}/signal"), Some(json!({ "signal": "INT" }))).expect(204);
    let rest = stream.take_until(r#""exit_code":5"#);
    assert!(rest.contains("heard"), "{rest}");
}

#[test]
fn what_makes_no_sense_is_refused_and_who_leaves_ends_it() {
    let (world, exec) = place();
    for bad in [
        json!({ "args": ["cat"], "open_stdin": true }),
        json!({ "args": ["cat"], "stream": true, "tty": { "rows": 24, "cols": 80 } }),
        json!({ "args": ["cat"], "stream": true, "open_stdin": true, "stdin": "x" }),
    ] {
        assert_eq!(world.ask("POST", &exec, Some(bad)).code(400), "invalid_request");
    }
    let (stream, command) = follow(&world, &exec, json!({ "args": ["sleep", "1000"], "stream": true }));
    assert_eq!(world.send("POST", &format!("{command}/stdin"), b"x").code(400), "invalid_request");
    assert_eq!(
        world.ask("POST", &format!("{command}/signal"), Some(json!({ "signal": 0 }))).code(400),
        "invalid_request"
    );
    for nobody in ["7777", "x", "-1"] {
        let path = format!("{exec}/{nobody}");
        assert_eq!(world.send("POST", &format!("{path}/stdin"), b"x").code(404), "process_not_found");
        assert_eq!(
            world.ask("POST", &format!("{path}/signal"), Some(json!({ "signal": 9 }))).code(404),
            "process_not_found"
        );
    }
    drop(stream);
    wait_until("the end of a command that nobody follows", || {
        world.ask("POST", &format!("{command}/signal"), Some(json!({ "signal": 9 }))).status == 404
    });
    wait_until("its thread", || world.guest_threads() == 0);
}
