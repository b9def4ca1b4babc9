//! A real Node that stays warm, and code that does its worst.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use session::{
    ErrorCode, EvalError, EvalRequest, Evaluation, ExitStatus, InterpreterState, SessionError, ShownKind, WarmRequest,
};
use types::Interpreter;

use crate::support::{Agent, eventually, renewal};

/// Enough for any code here, on any machine.
const AMPLE_MS: u64 = 30_000;

/// An agent whose interpreter is Node.
fn start(modules: &[&str]) -> Agent {
    let agent = Agent::start_renewed(&[("OLD", "1")]);
    warm(&agent, modules).unwrap();
    agent
}

fn warm(agent: &Agent, modules: &[&str]) -> Result<i32, SessionError> {
    let modules: Vec<_> = modules.iter().map(|name| name.parse().unwrap()).collect();
    let request =
        WarmRequest { program: Interpreter::Node, modules: modules.try_into().unwrap(), timeout_ms: AMPLE_MS };
    agent.connect().warm(&request).map(|warmed| warmed.pid)
}

fn eval_for(agent: &Agent, code: &str, timeout_ms: u64) -> Evaluation {
    agent.connect().eval(&EvalRequest { code: code.into(), timeout_ms }).unwrap()
}

fn eval(agent: &Agent, code: &str) -> Evaluation {
    eval_for(agent, code, AMPLE_MS)
}

/// The value of code that must have one, as JSON.
fn value(agent: &Agent, code: &str) -> Value {
    let evaluation = eval(agent, code);
    assert_eq!(evaluation.error, None, "{code}");
    let shown = evaluation.shown.iter().find(|bundle| bundle.kind == ShownKind::Result);
    let text = shown.and_then(|bundle| bundle.data.get("application/json"));
    serde_json::from_str(text.unwrap_or_else(|| panic!("no value: {code}"))).unwrap()
}

fn exception(evaluation: &Evaluation) -> (&str, &str, &str) {
    match &evaluation.error {
        Some(EvalError::Exception(raised)) => (&raised.class, &raised.message, &raised.traceback),
        other => panic!("no exception: {other:?}"),
    }
}

#[test]
fn values_are_json_and_state_persists() {
    let agent = start(&[]);
    assert_eq!(value(&agent, "1 + 1"), json!(2));
    assert_eq!(eval(&agent, "const x = [1, 2]; undefined").value, None);
    assert_eq!(eval(&agent, "function double(n) { return 2 * n }\nx.push(double(3)); void 0").value, None);
    assert_eq!(
        value(&agent, "const fs = require('fs'); let y = 2; class A {}\n({ x, y })"),
        json!({"x": [1, 2, 6], "y": 2})
    );
    // As in a console, and as who tries again would write it.
    assert_eq!(value(&agent, "const fs = require('fs'); let y = 3; class A { b = 1 }\nnew A().b + y"), json!(4));
    for (code, shown) in [("new Map([[1, 'a']])", "Map(1) { 1 => 'a' }"), ("'ä\\0'", "'ä\\x00'"), ("-0", "-0")] {
        assert_eq!(eval(&agent, code).value.as_deref(), Some(shown));
    }
    for without in ["10n", "Symbol('a')", "() => 1", "const o = {}; o.o = o; o"] {
        let evaluation = eval(&agent, without);
        assert!(evaluation.value.is_some() && evaluation.shown.is_empty(), "{without}: {evaluation:?}");
    }
    assert_eq!((eval(&agent, "").error, eval(&agent, "null").value), (None, Some("null".into())));
    assert_eq!(eval(&agent, "x").interpreter, InterpreterState::Alive);
}

#[test]
fn a_picture_is_shown_as_one() {
    let agent = start(&[]);
    let drawn = eval(&agent, "Buffer.from('89504e470d0a1a0a', 'hex')");
    let data = drawn.shown.iter().find_map(|bundle| bundle.data.get("image/png"));
    assert_eq!(data.map(String::as_str), Some("iVBORw0KGgo="), "{drawn:?}");
    assert_eq!(value(&agent, "Buffer.from('no')"), json!({"type": "Buffer", "data": [110, 111]}));
}

#[test]
fn promises_are_awaited() {
    let agent = start(&[]);
    assert_eq!(value(&agent, "const late = await new Promise((r) => setTimeout(() => r(5), 20)); late"), json!(5));
    assert_eq!(value(&agent, "Promise.resolve(late + 1)"), json!(6));
    assert_eq!(value(&agent, "(async () => late)()"), json!(5));
    assert_eq!(exception(&eval(&agent, "Promise.reject(new RangeError('no'))")).0, "RangeError");
    assert_eq!(exception(&eval(&agent, "await null; throw new TypeError('late')")).0, "TypeError");
    let imported = "const { basename } = await import('path'); basename('/a/b') + \" import('x') \"";
    assert_eq!(value(&agent, imported), json!("b import('x') "));
    assert_eq!(exception(&eval(&agent, "await import('no-such-package')")).0, "Error");
}

#[test]
fn errors_come_back_with_their_stack() {
    let agent = start(&[]);
    let raised = eval(&agent, "function f() { return {}.a.b }\nconsole.log('before')\nf()");
    let (class, message, stack) = exception(&raised);
    assert_eq!((class, message), ("TypeError", "Cannot read properties of undefined (reading 'b')"));
    let expected = format!("TypeError: {message}\n    at f (<eval-1>:1:28)\n    at <eval-1>:3:1");
    assert_eq!((stack, raised.stdout.as_slice()), (expected.as_str(), &b"before\n"[..]));
    let cause = eval(&agent, "throw new Error('outer', { cause: new Error('inner') })");
    let stack = exception(&cause).2;
    assert!(stack.contains("[cause]: Error: inner") && !stack.contains("forkd") && !stack.contains("node:"), "{stack}");
    let syntax = eval(&agent, "1\nlet a = ;");
    assert_eq!(
        exception(&syntax),
        (
            "SyntaxError",
            "Unexpected token ';'",
            "<eval-3>:2\nlet a = ;\n        ^\n\nSyntaxError: Unexpected token ';'"
        )
    );
    for (code, class, message) in [
        ("throw 5", "Uncaught", "5"),
        ("throw null", "Uncaught", "null"),
        ("JSON.parse('{')", "SyntaxError", ""),
        ("(function deep() { deep() })()", "RangeError", "Maximum call stack size exceeded"),
        ("class Odd extends Error { get message() { throw 1 } }\nthrow new Odd()", "Error", ""),
        ("throw new Error('\\ud800')", "Error", "\u{fffd}"),
        ("1 +", "SyntaxError", "Unexpected end of input"),
    ] {
        let raised = eval(&agent, code);
        let found = exception(&raised);
        assert_eq!(found.0, class, "{code}");
        assert!(message.is_empty() || found.1 == message, "{code}: {found:?}");
    }
    assert_eq!(eval(&agent, "1").interpreter, InterpreterState::Alive);
}

#[test]
fn output_is_captured_and_what_nobody_catches_is_said() {
    let agent = start(&[]);
    let code = "console.log('log'); console.error('error'); process.stdout.write('write\\n')\n\
        require('child_process').execSync('echo child >&2', { stdio: 'inherit' })\n\
        setTimeout(() => { throw new Error('thrown late') }, 1)\nPromise.reject(new Error('not caught'))\n\
        await new Promise((r) => setTimeout(r, 50))";
    let evaluation = eval(&agent, code);
    assert_eq!(evaluation.stdout, b"log\nwrite\n");
    let stderr = String::from_utf8(evaluation.stderr).unwrap();
    for line in ["error\n", "child\n", "Uncaught Error: thrown late\n", "Uncaught Error: not caught\n"] {
        assert!(stderr.contains(line), "{line:?} is missing: {stderr}");
    }
    assert_eq!((eval(&agent, "1").stdout, eval(&agent, "1").interpreter), (Vec::new(), InterpreterState::Alive));
}

#[test]
fn too_much_is_cut_and_said_and_much_is_not() {
    let agent = start(&[]);
    let long = eval(&agent, "'\\u0001\u{1f600}'.repeat(1 << 20)");
    assert!(long.truncated && long.value.is_some_and(|value| value.starts_with("'\\x01")));
    let json = value(&agent, "Array.from({ length: 1 << 17 }, () => 'ä\u{1f600}')");
    assert_eq!(json.as_array().map(Vec::len), Some(1 << 17));
    assert!(eval(&agent, "'x'.repeat(5 << 20)").truncated);
    let loud = eval(&agent, "throw new Error('\\u0001'.repeat(1 << 20))");
    assert!(loud.truncated && exception(&loud).1.starts_with('\u{1}'));
    assert_eq!(eval(&agent, "console.log('x'.repeat(3 << 20))").stdout.len(), 1 << 20);
}

#[test]
fn what_takes_too_long_is_interrupted_and_its_state_survives() {
    let agent = start(&[]);
    eval(&agent, "const kept = 7");
    for code in [
        "while (true) {}",
        "console.log('so far')\nwhile (true) {}",
        "await new Promise(() => {})",
        "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
        "try { while (true) {} } catch {} finally { while (true) {} }",
    ] {
        let begun = Instant::now();
        let evaluation = eval_for(&agent, code, 300);
        assert!(matches!(evaluation.error, Some(EvalError::Timeout { traceback: Some(_) })), "{code}: {evaluation:?}");
        assert_eq!(evaluation.interpreter, InterpreterState::Alive, "{code}");
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(evaluation.stdout.is_empty(), !code.starts_with("console"));
    }
    assert_eq!(value(&agent, "kept"), json!(7));
    // Ends at about the deadline, so that the interrupt comes before, with and after the end.
    for wait_ms in (16..28).chain(16..28) {
        eval_for(&agent, &format!("await new Promise((r) => setTimeout(r, {wait_ms})); 1"), 20);
        let sum = "let sum = 0; for (let i = 0; i < 1000; i += 1) { sum += i; await null } sum";
        assert_eq!(value(&agent, sum), json!(499_500), "after {wait_ms} ms");
    }
}

#[test]
fn a_node_that_dies_or_does_not_heed_is_said_to_and_comes_back() {
    let agent = start(&["os"]);
    for (code, error) in [
        ("process.exit(3)", EvalError::Died { status: ExitStatus::Code(3) }),
        ("process.kill(process.pid, 'SIGKILL')", EvalError::Died { status: ExitStatus::Signal(9) }),
        // The first part of the code can be interrupted, what follows an `await` cannot.
        ("await new Promise((r) => setTimeout(r, 1)); while (true) {}", EvalError::Timeout { traceback: None }),
    ] {
        let lost = eval_for(&agent, code, 2000);
        assert_eq!((lost.error, lost.interpreter), (Some(error), InterpreterState::Lost), "{code}");
        let next = eval(&agent, "os.EOL");
        assert_eq!((next.value.as_deref(), next.interpreter), (Some(r"'\n'"), InterpreterState::Restarted));
    }
}

#[test]
fn modules_are_loaded_and_known_by_their_names() {
    let agent = Agent::start_renewed(&[]);
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("some-thing.cjs");
    fs::write(&file, "module.exports = { answer: 42 }").unwrap();
    fs::write(home.path().join("esm.mjs"), "export const answer = 43").unwrap();
    let esm = home.path().join("esm.mjs");
    let pid = warm(&agent, &["fs/promises", "node:path", file.to_str().unwrap(), esm.to_str().unwrap()]).unwrap();
    let known = "[typeof promises.readFile, path.sep, someThing.answer, esm.answer, process.pid]";
    assert_eq!(value(&agent, known), json!(["function", "/", 42, 43, pid]));
    match warm(&agent, &["no-such-package"]) {
        Err(SessionError::Refused { code: ErrorCode::ImportFailed, message }) => {
            assert!(message.contains("Cannot find module 'no-such-package'"), "{message}");
        }
        other => panic!("it was loaded: {other:?}"),
    }
    assert_eq!(warm(&agent, &["os"]).unwrap(), pid, "it is the same Node");
    let foreign = WarmRequest {
        program: Interpreter::Python3,
        modules: vec!["some-thing".parse().unwrap()].try_into().unwrap(),
        timeout_ms: AMPLE_MS,
    };
    let refused = agent.connect().warm(&foreign);
    assert!(matches!(refused, Err(SessionError::Refused { code: ErrorCode::BadArgument, .. })), "{refused:?}");
    assert_eq!(value(&agent, "process.pid"), json!(pid), "what was refused changed something");
}

#[test]
fn a_renewal_reaches_a_node_that_never_lets_go() {
    let agent = start(&[]);
    assert_eq!(value(&agent, "[process.env.OLD ?? null, process.env.NEW ?? null]"), json!(["1", null]));
    let flag = tempfile::NamedTempFile::new().unwrap();
    let code = format!(
        "require('fs').writeFileSync({:?}, 'x')\nwhile (!process.env.NEW) {{}}\n[process.env.OLD ?? null, Math.random()]",
        flag.path()
    );
    thread::scope(|scope| {
        let running = scope.spawn(|| value(&agent, &code));
        eventually("the code runs", || flag.path().metadata().unwrap().len() > 0);
        agent.connect().renew(&renewal(&[("NEW", "2")])).unwrap();
        assert_eq!(running.join().unwrap()[0], Value::Null);
    });
    let child = "require('child_process').execSync('echo $NEW$OLD').toString()";
    assert_eq!(value(&agent, child), json!("2\n"));
    agent.connect().renew(&renewal(&[])).unwrap();
    assert_eq!(value(&agent, child), json!("\n"));
}

#[test]
fn randomness_is_still_random() {
    let agent = start(&[]);
    let drawn = "const { randomInt, randomUUID, webcrypto } = require('crypto');\n\
        [Math.random(), randomInt(2 ** 40), randomUUID(), webcrypto.randomUUID()].map(String)";
    let mut seen = Vec::new();
    for _ in 0..3 {
        let drawn = value(&agent, drawn);
        seen.extend(drawn.as_array().unwrap().iter().map(ToString::to_string));
        agent.connect().renew(&renewal(&[])).unwrap();
    }
    let count = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count, "something came twice");
    let spread = "let [least, most, sum] = [1, 0, 0];\nfor (let i = 0; i < 1e5; i += 1) {\n  const x = Math.random()\n  \
        least = Math.min(least, x); most = Math.max(most, x); sum += x\n}\n[least >= 0, most < 1, Math.abs(sum / 1e5 - 0.5) < 0.01]";
    assert_eq!(value(&agent, spread), json!([true, true, true]));
}

#[test]
fn a_guest_without_node_says_so() {
    let empty = tempfile::tempdir().unwrap();
    let agent = Agent::start_renewed(&[("PATH", empty.path().to_str().unwrap())]);
    match warm(&agent, &[]) {
        Err(SessionError::Refused { code: ErrorCode::NotFound, message }) => {
            assert_eq!(message, "nothing was run: there is no program `node`");
        }
        other => panic!("it was run: {other:?}"),
    }
}
