//! A real Python 3 that stays warm, and code that does its worst.

use std::thread;
use std::time::{Duration, Instant};

use session::{ErrorCode, EvalError, EvalRequest, Evaluation, ExitStatus, InterpreterState, SessionError, WarmRequest};
use types::{Interpreter, Modules};

use crate::support::{Agent, eventually, group_lives};

/// Enough for any code here, on any machine.
const AMPLE_MS: u64 = 30_000;

fn try_eval(agent: &Agent, code: &str, timeout_ms: u64) -> Result<Evaluation, SessionError> {
    agent.connect().eval(&EvalRequest { code: code.into(), timeout_ms })
}

fn eval(agent: &Agent, code: &str) -> Evaluation {
    try_eval(agent, code, AMPLE_MS).unwrap()
}

/// The value of code that must have one.
fn value(agent: &Agent, code: &str) -> String {
    let evaluation = eval(agent, code);
    assert_eq!(evaluation.error, None, "{code}");
    evaluation.value.unwrap_or_else(|| panic!("no value: {code}"))
}

fn warm(agent: &Agent, modules: &[&str], timeout_ms: u64) -> Result<i32, SessionError> {
    let modules: Vec<_> = modules.iter().map(|name| name.parse().unwrap()).collect();
    let request = WarmRequest { program: Interpreter::Python3, modules: modules.try_into().unwrap(), timeout_ms };
    agent.connect().warm(&request).map(|warmed| warmed.pid)
}

fn exception(evaluation: &Evaluation) -> (&str, &str, &str) {
    match &evaluation.error {
        Some(EvalError::Exception(raised)) => (&raised.class, &raised.message, &raised.traceback),
        other => panic!("no exception: {other:?}"),
    }
}

#[test]
fn expressions_have_values_and_state_persists() {
    let agent = Agent::start();
    assert_eq!(value(&agent, "1 + 1"), "2");
    assert_eq!(eval(&agent, "x = [1, 2]").value, None);
    assert_eq!(eval(&agent, "def double(n):\n    return 2 * n\nx.append(double(3))\n").value, None);
    assert_eq!(value(&agent, "import math\ny = math.floor(2.5)\n(x, y)"), "([1, 2, 6], 2)");
    assert_eq!(value(&agent, "'\\u00e4\\x00' + \"'\""), "\"ä\\x00'\"");
    assert_eq!(value(&agent, "__name__"), "'__main__'");
    assert_eq!(eval(&agent, "None").value, None);
    assert_eq!(eval(&agent, "").error, None);
    assert_eq!(eval(&agent, "x").interpreter, InterpreterState::Alive);
}

#[test]
fn exceptions_come_back_with_their_traceback() {
    let agent = Agent::start();
    let raised = eval(&agent, "def f():\n    return {}['nope']\nprint('before')\nf()");
    let (class, message, traceback) = exception(&raised);
    assert_eq!((class, message), ("KeyError", "'nope'"));
    assert!(traceback.starts_with("Traceback (most recent call last):\n  File \"<eval 1>\", line 4"), "{traceback}");
    assert!(traceback.contains("return {}['nope']") && !traceback.contains("forkd"), "{traceback}");
    assert_eq!(raised.stdout, b"before\n");
    let syntax = eval(&agent, "1 +");
    let (class, _, traceback) = exception(&syntax);
    assert_eq!((class, traceback.contains("<eval 2>")), ("SyntaxError", true), "{traceback}");
    let exit = eval(&agent, "import sys; sys.exit(3)");
    assert_eq!(exception(&exit).0, "SystemExit");
    for (code, class) in [
        ("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd", "Odd"),
        ("class NoRepr:\n    def __repr__(self): raise ArithmeticError('x')\nNoRepr()", "ArithmeticError"),
        ("def deep(n): return deep(n + 1)\ndeep(0)", "RecursionError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import json; json.loads('{')", "json.decoder.JSONDecodeError"),
    ] {
        assert_eq!(exception(&eval(&agent, code)).0, class, "{code}");
    }
    assert_eq!(value(&agent, "'\\ud800'"), r"'\ud800'");
    assert_eq!(exception(&eval(&agent, "raise ValueError('\\ud800')")).1, "?");
    assert_eq!(eval(&agent, "1").interpreter, InterpreterState::Alive);
}

#[test]
fn output_is_captured_where_it_is_written() {
    let agent = Agent::start();
    let code = "import os, sys, subprocess, threading, ctypes\n\
        print('print'); sys.stderr.write('stderr\\n'); os.write(1, b'write\\n')\n\
        t = threading.Thread(target=lambda: print('thread')); t.start(); t.join()\n\
        subprocess.run(['sh', '-c', 'echo child; echo child-err >&2'])\n\
        ctypes.CDLL(None).printf(b'printf\\n')\nprint('no newline', end='')";
    let evaluation = eval(&agent, code);
    let stdout = String::from_utf8(evaluation.stdout).unwrap();
    for line in ["print\n", "write\n", "thread\n", "child\n", "printf\n", "no newline"] {
        assert!(stdout.contains(line), "{line:?} is missing: {stdout}");
    }
    assert_eq!(String::from_utf8(evaluation.stderr).unwrap(), "stderr\nchild-err\n");
    assert_eq!(eval(&agent, "1").stdout, b"", "output came twice");
}

#[test]
fn too_much_is_cut_and_said() {
    let agent = Agent::start();
    let flood = eval(&agent, "print('x' * (3 << 20))");
    assert_eq!((flood.stdout.len(), flood.truncated, flood.error), (1 << 20, true, None));
    let long = eval(&agent, "'\\x01' * (1 << 20)");
    assert!(long.truncated && long.value.is_some_and(|value| value.starts_with("'\\x01")));
    let raw = eval(&agent, "class Raw:\n    def __repr__(self): return '\\x01\\U0001f600' * 100000\nRaw()");
    assert!(raw.truncated && raw.value.is_some_and(|value| value.starts_with("\u{1}\u{1f600}")));
    let loud = eval(&agent, "raise ValueError('\\x01' * (1 << 20))");
    assert!(loud.truncated && exception(&loud).2.ends_with("\u{1}\n"));
    let exact = eval(&agent, "'y' * 1000");
    assert_eq!((exact.truncated, exact.value.map(|value| value.len())), (false, Some(1002)));
}

#[test]
fn an_endless_loop_is_interrupted_and_its_state_survives() {
    let agent = Agent::start();
    eval(&agent, "kept = 7");
    for code in ["while True: pass", "import time\ntime.sleep(1000)", "print('so far')\nwhile True: pass"] {
        let begun = Instant::now();
        let evaluation = try_eval(&agent, code, 200).unwrap();
        let Some(EvalError::Timeout { traceback: Some(traceback) }) = &evaluation.error else {
            panic!("{code}: {evaluation:?}")
        };
        assert!(traceback.contains("KeyboardInterrupt") && !traceback.contains("forkd"), "{traceback}");
        assert_eq!(evaluation.interpreter, InterpreterState::Alive);
        assert!(begun.elapsed() < Duration::from_secs(10));
        if code.starts_with("print") {
            assert_eq!(evaluation.stdout, b"so far\n");
        }
    }
    assert_eq!(value(&agent, "kept"), "7");
}

#[test]
fn code_that_does_not_heed_the_interrupt_costs_the_interpreter() {
    let agent = Agent::start();
    warm(&agent, &["json"], AMPLE_MS).unwrap();
    for code in [
        "import time\nwhile True:\n    try: time.sleep(1000)\n    except BaseException: pass",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "import os\nprint('heard')\nos.system('exec sleep 1000')",
    ] {
        let pid: i32 = value(&agent, "import os; state = 1; os.getpid()").parse().unwrap();
        // Long enough for the code to come to where it cannot be interrupted, on a busy machine too.
        let evaluation = try_eval(&agent, code, 1000).unwrap();
        assert_eq!(evaluation.error, Some(EvalError::Timeout { traceback: None }), "{code}");
        assert_eq!(evaluation.interpreter, InterpreterState::Lost);
        eventually("what it started is gone", || !group_lives(pid));
        let next = eval(&agent, "'state' in globals(), json.dumps(1)");
        assert_eq!(next.value.as_deref(), Some("(False, '1')"), "{:?}", next.error);
        assert_eq!(next.interpreter, InterpreterState::Restarted);
        assert_eq!(eval(&agent, "1").interpreter, InterpreterState::Alive);
    }
}

#[test]
fn an_interpreter_that_dies_is_said_to_and_comes_back() {
    let agent = Agent::start();
    for (code, status) in [
        ("import os; print('last words', flush=True); os._exit(3)", ExitStatus::Code(3)),
        ("import os; os.kill(os.getpid(), 9)", ExitStatus::Signal(9)),
        ("import ctypes; ctypes.string_at(0)", ExitStatus::Signal(11)),
        // A copy keeps the socket open; the end is noticed all the same.
        ("import os\nif os.fork() == 0:\n    os.execvp('sleep', ['sleep', '1000'])\nos._exit(4)", ExitStatus::Code(4)),
    ] {
        let evaluation = eval(&agent, code);
        assert_eq!(evaluation.error, Some(EvalError::Died { status }), "{code}");
        assert_eq!(evaluation.interpreter, InterpreterState::Lost);
        assert_eq!(evaluation.stdout.starts_with(b"last words"), code.contains("last words"));
        let next = eval(&agent, "1");
        assert_eq!((next.value.as_deref(), next.interpreter), (Some("1"), InterpreterState::Restarted));
    }
    // Between two evals, by somebody else.
    let pid = value(&agent, "import os; os.getpid()");
    agent.sh(&format!("kill -9 {pid}"));
    // Code that meets it dying, before the agent has noticed, is told so.
    let states: Vec<_> = (0..3).map(|_| eval(&agent, "1").interpreter).collect();
    let restarted = states.iter().position(|state| *state == InterpreterState::Restarted);
    let before = &states[..restarted.expect("it came back")];
    assert!(before.is_empty() || before == [InterpreterState::Lost], "{states:?}");
}

#[test]
fn a_copy_that_code_forks_does_not_answer() {
    let agent = Agent::start();
    assert_eq!(value(&agent, "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nbool(pid)"), "True");
    assert_eq!(value(&agent, "'still in step'"), "'still in step'");
}

#[test]
fn an_interpreter_that_loses_or_abuses_its_sockets_is_replaced() {
    let agent = Agent::start();
    let garbage = "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\xff' * 64)\n    except OSError: pass";
    for code in ["import os\nos.closerange(3, 1000)", garbage] {
        let broken = eval(&agent, code);
        assert!(matches!(broken.error, Some(EvalError::Died { .. })), "{:?}", broken.error);
        assert_eq!(value(&agent, "1"), "1");
    }
}

#[test]
fn evals_take_turns_and_nobody_waits_longer_than_he_wants() {
    let agent = Agent::start();
    value(&agent, "count = 0; 1");
    thread::scope(|scope| {
        for _ in 0..8 {
            let code = "import time\nseen = count\ntime.sleep(0.02)\ncount = seen + 1";
            scope.spawn(|| assert_eq!(eval(&agent, code).error, None));
        }
    });
    assert_eq!(value(&agent, "count"), "8");
    let flag = tempfile::NamedTempFile::new().unwrap();
    let code = format!("import time\nopen({:?}, 'w').write('x')\ntime.sleep(1000)", flag.path());
    thread::scope(|scope| {
        let long = scope.spawn(|| try_eval(&agent, &code, 3000).unwrap().error);
        eventually("the long one runs", || flag.path().metadata().unwrap().len() > 0);
        match try_eval(&agent, "1", 100) {
            Err(SessionError::Refused { code: ErrorCode::Timeout, .. }) => {}
            other => panic!("it did not give up: {other:?}"),
        }
        agent.connect().ping().unwrap();
        assert_eq!(agent.sh("exit 5").0, ExitStatus::Code(5));
        assert!(matches!(long.join().unwrap(), Some(EvalError::Timeout { .. })));
    });
    assert_eq!(value(&agent, "count"), "8");
}

#[test]
fn warming_imports_once_and_says_what_went_wrong() {
    let agent = Agent::start();
    let pid = warm(&agent, &["json", "os.path"], AMPLE_MS).unwrap();
    assert_eq!(value(&agent, "json.dumps([os.path.sep]), os.getpid()"), format!("('[\"/\"]', {pid})"));
    match warm(&agent, &["json", "no_such_module"], AMPLE_MS) {
        Err(SessionError::Refused { code: ErrorCode::ImportFailed, message }) => {
            assert!(message.contains("No module named 'no_such_module'"), "{message}");
        }
        other => panic!("it was imported: {other:?}"),
    }
    assert_eq!(warm(&agent, &["math"], AMPLE_MS).unwrap(), pid, "it is the same interpreter");
    assert_eq!(value(&agent, "math.pi > 3"), "True");
}

#[test]
fn an_import_that_hangs_is_cut() {
    let agent = Agent::start();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("hangs_on_import.py"), "while True: pass\n").unwrap();
    eval(&agent, &format!("import sys; sys.path.insert(0, {:?})", dir.path()));
    match warm(&agent, &["hangs_on_import"], 200) {
        Err(SessionError::Refused { code: ErrorCode::Timeout, .. }) => {}
        other => panic!("it was not cut: {other:?}"),
    }
    assert_eq!(value(&agent, "sys.path[0]"), format!("'{}'", dir.path().display()));
}

#[test]
fn a_server_that_code_leaves_behind_is_not_held_up() {
    let agent = Agent::start();
    let done = tempfile::NamedTempFile::new().unwrap();
    // More than a pipe holds, written when nobody evaluates anything.
    let script = format!("sleep 0.1; head -c 1000000 /dev/zero; echo x > {}", done.path().display());
    eval(&agent, &format!("import subprocess\np = subprocess.Popen(['sh', '-c', {script:?}])"));
    eventually("it wrote everything", || done.path().metadata().unwrap().len() > 0);
    assert_eq!(value(&agent, "p.wait()"), "0");
}

#[test]
fn an_interrupt_that_comes_too_late_hits_nobody() {
    let agent = Agent::start();
    value(&agent, "1");
    // Ends at about the deadline, so that the interrupt comes before, with and after the end.
    for wait_ms in (16..28).chain(16..28) {
        let code = format!("import time\ntime.sleep({wait_ms} / 1000)\n1");
        try_eval(&agent, &code, 20).unwrap();
        assert_eq!(value(&agent, "sum(range(1000))"), "499500", "after {wait_ms} ms");
    }
}

#[test]
fn a_guest_without_jupyter_says_so() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("ipykernel")).unwrap();
    std::fs::write(dir.path().join("ipykernel/__init__.py"), "").unwrap();
    let agent = Agent::start_renewed(&[("PYTHONPATH", dir.path().to_str().unwrap())]);
    let request = WarmRequest { program: Interpreter::Jupyter, modules: Modules::default(), timeout_ms: AMPLE_MS };
    match agent.connect().warm(&request) {
        Err(SessionError::Refused { code: ErrorCode::Failed, message }) => {
            assert!(message.starts_with("the interpreter exited with code 1; it said: Traceback"), "{message}");
            assert!(message.ends_with("ModuleNotFoundError: No module named 'ipykernel.kernelapp'"), "{message}");
        }
        other => panic!("it was started: {other:?}"),
    }
}

#[test]
fn a_guest_without_python_says_so() {
    let empty = tempfile::tempdir().unwrap();
    let agent = Agent::start_renewed(&[("PATH", empty.path().to_str().unwrap())]);
    match try_eval(&agent, "1", AMPLE_MS) {
        Err(SessionError::Refused { code: ErrorCode::NotFound, message }) => {
            assert_eq!(message, "nothing was run: there is no program `python3`");
        }
        other => panic!("it was run: {other:?}"),
    }
    assert!(matches!(warm(&agent, &[], AMPLE_MS), Err(SessionError::Refused { code: ErrorCode::NotFound, .. })));
}
