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

/// Both sides of generation 2 as they go over the wire.
fn generation_2() -> (Vec<Request>, Vec<Reply>) {
    let path = |text: &str| text.parse::<GuestPath>().unwrap();
    let (a, user) = (path("/a"), Some("nobody".to_owned()));
    let size = TtySize { rows: 24, cols: 80 };
    let start = ExecRequest { argv: vec!["sleep".into(), "9".into()], stdio: Stdio::Pipes, ..ExecRequest::default() };
    let files = [
        FileRequest::Read(ReadFile { path: a.clone(), offset: 0, length: None, user: None }),
        FileRequest::Read(ReadFile { path: a.clone(), offset: 7, length: Some(9), user: user.clone() }),
        FileRequest::Write(WriteFile { path: a.clone(), mode: None, parents: false, user: None }),
        FileRequest::Write(WriteFile { path: a.clone(), mode: Some(0o600), parents: true, user: user.clone() }),
        FileRequest::List(ListFiles { path: a.clone(), depth: 1, user: user.clone() }),
        FileRequest::Stat(StatFile { path: a.clone(), user: user.clone() }),
        FileRequest::MakeDir(MakeDir { path: a.clone(), mode: Some(0o755), parents: true, user: user.clone() }),
        FileRequest::Move(MoveFile { from: a.clone(), to: path("/b"), overwrite: true, user: user.clone() }),
        FileRequest::Remove(RemoveFile { path: a.clone(), recursive: true, user: user.clone() }),
    ];
    let processes = [
        ProcessRequest::Start(Box::new(start)),
        ProcessRequest::List,
        ProcessRequest::Show { id: 1 },
        ProcessRequest::Attach { id: 1 },
        ProcessRequest::Feed { id: 1, close: true },
        ProcessRequest::Signal { id: 1, signal: 15 },
        ProcessRequest::Resize { id: 1, size },
        ProcessRequest::Forget { id: 1 },
    ];
    let dials = [
        DialTarget::Tcp { address: None, port: 80 },
        DialTarget::Tcp { address: Some([10, 0, 0, 2].into()), port: 80 },
        DialTarget::Unix { path: a },
    ];
    let file = FileInfo {
        path: "/a".into(),
        kind: FileKind::File,
        size: 3,
        mode: 0o644,
        uid: 1,
        gid: 2,
        mtime_unix_ms: 1_700_000_000_123,
        target: None,
    };
    let link = FileInfo { kind: FileKind::Symlink, target: Some("b".into()), ..file.clone() };
    let running = ProcessInfo {
        id: 1,
        pid: 42,
        argv: vec!["sleep".into(), "9".into()],
        cwd: None,
        user: None,
        started_unix_ms: 1_700_000_000_123,
        tty: None,
        status: None,
        timed_out: false,
    };
    let ended = ProcessInfo {
        cwd: Some("/".into()),
        user,
        tty: Some(size),
        status: Some(ExitStatus::Signal(9)),
        timed_out: true,
        ..running.clone()
    };
    let requests = files.into_iter().map(|op| Request::File { op });
    let requests = requests.chain(processes.into_iter().map(|op| Request::Process { op }));
    let replies = vec![
        Reply::File(file.clone()),
        Reply::Files { files: vec![file, link] },
        Reply::Process(running),
        Reply::Process(ended),
        Reply::Skipped { bytes: 4096 },
        Reply::Error { code: ErrorCode::IsADirectory, message: "cannot read /a: it is a directory".into() },
    ];
    (requests.chain(dials.map(|to| Request::Dial { to })).collect(), replies)
}

#[test]
fn the_surface_of_generation_2_is_frozen_and_read_back() {
    let (requests, replies) = generation_2();
    let mut lines = include_str!("../../schema/gen-2.jsonl").lines();
    for request in requests {
        let line = lines.next().unwrap();
        assert_eq!(serde_json::to_string(&request).unwrap(), line, "a released message changed its shape");
        assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
        assert_eq!(request.since(), 2);
    }
    for reply in replies {
        let line = lines.next().unwrap();
        assert_eq!(serde_json::to_string(&reply).unwrap(), line, "a released message changed its shape");
        assert_eq!(serde_json::from_str::<Reply>(line).unwrap(), reply);
    }
    assert_eq!(lines.next(), None);
}

#[test]
fn the_surface_of_generation_3_is_frozen_and_read_back() {
    let warm = |program, module: &str| {
        let modules = vec![module.parse().unwrap()].try_into().unwrap();
        Request::Warm(WarmRequest { program, modules, timeout_ms: 60_000 })
    };
    let shown = |kind, mime: &str| Reply::Shown(Shown { output: 0, kind, mime: mime.into(), text: "{}".into() });
    let mut lines = include_str!("../../schema/gen-3.jsonl").lines();
    for request in [warm(Interpreter::Node, "@scope/some-thing"), warm(Interpreter::Jupyter, "matplotlib.pyplot")] {
        let line = lines.next().unwrap();
        assert_eq!(serde_json::to_string(&request).unwrap(), line, "a released message changed its shape");
        assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
        assert_eq!(request.since(), 3);
    }
    for reply in [shown(ShownKind::Result, "application/json"), shown(ShownKind::Display, "image/png")] {
        let line = lines.next().unwrap();
        assert_eq!(serde_json::to_string(&reply).unwrap(), line, "a released message changed its shape");
        assert_eq!(serde_json::from_str::<Reply>(line).unwrap(), reply);
    }
    assert_eq!(lines.next(), None);
}

#[test]
fn a_code_from_the_future_is_still_an_error() {
    let text = r#"{"reply":"error","code":"sunspots","message":"x"}"#;
    let reply: Reply = serde_json::from_str(text).unwrap();
    assert!(matches!(reply, Reply::Error { code: ErrorCode::Unknown, .. }));
}
