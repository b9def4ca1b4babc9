use types::Interpreter;

use super::*;

fn renewal() -> RenewRequest {
    RenewRequest {
        sandbox_id: "sb-1".parse().unwrap(),
        hostname: "sb-1".parse().unwrap(),
        machine_id: "0123456789abcdef0123456789abcdef".parse().unwrap(),
        generation: "7".parse().unwrap(),
        env: BTreeMap::from([("A".into(), "b".into())]).try_into().unwrap(),
        metadata: BTreeMap::from([("k".into(), "v".into())]).try_into().unwrap(),
        wall_clock_unix_ns: 1_700_000_000_000_000_000,
        entropy: vec![0xa5; 32].try_into().unwrap(),
    }
}

const fn evaluated(error: Option<EvalError>, interpreter: InterpreterState) -> Evaluated {
    Evaluated { value: None, error, truncated: false, interpreter }
}

fn exception() -> Exception {
    Exception { class: "KeyError".into(), message: "'x'".into(), traceback: "Traceback".into() }
}

const fn died() -> EvalError {
    EvalError::Died { status: ExitStatus::Signal(11) }
}

#[test]
fn a_killed_process_shows_as_a_shell_shows_it() {
    assert_eq!(ExitStatus::Code(7).shell_code(), 7);
    assert_eq!(ExitStatus::Signal(9).shell_code(), 137);
}

#[test]
fn the_surface_of_generation_1_is_frozen() {
    let requests = [
        Request::Hello { generation: 1, token: None },
        Request::Exec(ExecRequest { argv: vec!["true".into()], ..ExecRequest::default() }),
        Request::Exec(ExecRequest {
            argv: vec!["sh".into(), "-c".into(), "id".into()],
            env: BTreeMap::from([("A".into(), "b".into())]),
            cwd: Some("/tmp".into()),
            user: Some("nobody".into()),
            timeout_ms: Some(1500),
            stdio: Stdio::Tty(TtySize { rows: 24, cols: 80 }),
        }),
        Request::Signal { signal: 15 },
        Request::Resize(TtySize { rows: 50, cols: 120 }),
        Request::Ping,
        Request::Renew(Box::new(renewal())),
        Request::SetClock { unix_ns: 1_700_000_000_000_000_000 },
        Request::Warm(WarmRequest {
            program: Interpreter::Python3,
            modules: vec!["numpy".parse().unwrap(), "os.path".parse().unwrap()].try_into().unwrap(),
            timeout_ms: 60_000,
        }),
        Request::Eval(EvalRequest { code: "1 + 1".into(), timeout_ms: 1000 }),
        Request::Poweroff,
        Request::Reboot,
    ];
    let replies = [
        Reply::Hello(AgentHello { generation: 1, agent: "0.1.0".into(), kernel: "6.1.0".into(), boot_ms: 90 }),
        Reply::Started { pid: 42 },
        Reply::StdinCredit { bytes: 4096 },
        Reply::Exited { status: ExitStatus::Code(0), timed_out: false },
        Reply::Exited { status: ExitStatus::Signal(9), timed_out: true },
        Reply::Renewed(Renewed { took_us: 700, monotonic_ns: 5_000_000_000 }),
        Reply::Warmed(Warmed { pid: 43, took_us: 90_000 }),
        Reply::Evaluated(Evaluated { value: Some("2".into()), ..evaluated(None, InterpreterState::Alive) }),
        Reply::Evaluated(evaluated(Some(EvalError::Exception(exception())), InterpreterState::Restarted)),
        Reply::Evaluated(evaluated(Some(EvalError::Timeout { traceback: Some("t".into()) }), InterpreterState::Alive)),
        Reply::Evaluated(evaluated(Some(EvalError::Timeout { traceback: None }), InterpreterState::Lost)),
        Reply::Evaluated(Evaluated { truncated: true, ..evaluated(Some(died()), InterpreterState::Lost) }),
        Reply::Done,
        Reply::Error { code: ErrorCode::NotFound, message: "no such program: x".into() },
    ];
    let lines = requests.iter().map(serde_json::to_string).chain(replies.iter().map(serde_json::to_string));
    let surface: String = lines.map(|line| line.unwrap() + "\n").collect();
    assert_eq!(surface, include_str!("../../schema/gen-1.jsonl"), "a released message changed its shape");
}

#[test]
fn a_code_from_the_future_is_still_an_error() {
    let text = r#"{"reply":"error","code":"sunspots","message":"x"}"#;
    let reply: Reply = serde_json::from_str(text).unwrap();
    assert!(matches!(reply, Reply::Error { code: ErrorCode::Unknown, .. }));
}
