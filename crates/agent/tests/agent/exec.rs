//! What runs, how it is started, and how its end is told.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use session::{ErrorCode, Event, ExecRequest, ExitStatus};

use crate::support::{Agent, eventually, group_lives, processes, request, shell, stat, with_pipes};

#[test]
fn exit_codes_and_signals_are_told_apart() {
    let agent = Agent::start();
    assert_eq!(agent.sh("exit 0").0, ExitStatus::Code(0));
    assert_eq!(agent.sh("exit 7").0, ExitStatus::Code(7));
    assert_eq!(agent.sh("exit 137").0, ExitStatus::Code(137));
    let killed = agent.sh("kill -9 $$").0;
    assert_eq!((killed, killed.shell_code()), (ExitStatus::Signal(9), 137));
    assert_eq!(agent.sh("kill -TERM $$").0, ExitStatus::Signal(15));
}

#[test]
fn output_and_errors_come_on_their_own_streams() {
    let output = Agent::start().run(&shell("echo out; echo err >&2; cat"));
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!((output.status, output.timed_out), (ExitStatus::Code(0), false));
}

#[test]
fn what_cannot_be_started_says_why() {
    let agent = Agent::start();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (plain, script, garbage) = (
        file("plain", "#!/bin/sh\n", 0o644),
        file("script", "#!/no/such/interpreter\n", 0o755),
        file("garbage", "neither ELF nor script", 0o755),
    );
    for (argv, code) in [
        (&["no-such-program"][..], ErrorCode::NotFound),
        (&["/no/such/program"], ErrorCode::NotFound),
        (&["/etc/passwd/x"], ErrorCode::NotFound),
        (&[&plain], ErrorCode::NotExecutable),
        (&[&script], ErrorCode::NotExecutable),
        (&[&garbage], ErrorCode::NotExecutable),
        (&["/"], ErrorCode::NotExecutable),
        (&[], ErrorCode::BadArgument),
        (&["a\0b"], ErrorCode::BadArgument),
    ] {
        assert_eq!(agent.refusal(&request(argv)), code, "{argv:?}");
    }
    for cwd in ["/no/such/directory", "/etc/passwd"] {
        assert_eq!(agent.refusal(&ExecRequest { cwd: Some(cwd.into()), ..shell("") }), ErrorCode::BadCwd);
    }
    for user in ["no-such-user", "nobody:no-such-group", "-7", ""] {
        assert_eq!(agent.refusal(&ExecRequest { user: Some(user.into()), ..shell("") }), ErrorCode::NoSuchUser);
    }
}

#[test]
fn a_refused_exec_leaves_the_connection_usable() {
    let agent = Agent::start();
    let connection = agent.connect();
    connection.exec(&request(&["no-such-program"])).unwrap_err();
    let mut exec = agent.exec(&shell("exit 3"));
    assert!(matches!(exec.next_event().unwrap(), Event::Exited { status: ExitStatus::Code(3), .. }));
    let mut again = exec.into_connection().unwrap();
    again.ping().unwrap();
    assert_eq!(again.output(&shell("exit 4"), &[], 0).unwrap().status, ExitStatus::Code(4));
}

#[test]
fn the_environment_is_small_and_can_be_added_to() {
    let agent = Agent::start();
    let env = BTreeMap::from([("A".into(), "b c=d".into()), ("LANG".into(), "C".into())]);
    let output = agent.run(&ExecRequest { env, ..request(&["env"]) });
    let mut lines: Vec<_> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
    lines.sort_unstable();
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(lines, ["A=b c=d", "HOME=/root", "LANG=C", "LOGNAME=root", path, "TERM=dumb", "USER=root"]);
}

#[test]
fn a_program_is_found_in_the_path_it_gets() {
    let agent = Agent::start();
    let dir = tempfile::tempdir().unwrap();
    let tool = dir.path().join("my-tool");
    fs::write(&tool, "#!/bin/sh\necho found\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let env = BTreeMap::from([("PATH".into(), format!("/nowhere:{}", dir.path().display()))]);
    assert_eq!(agent.run(&ExecRequest { env, ..request(&["my-tool"]) }).stdout, b"found\n");
}

#[test]
fn the_working_directory_is_the_home_or_what_is_asked_for() {
    let agent = Agent::start();
    let pwd = |cwd: Option<&str>, user: Option<&str>| {
        let request = ExecRequest { cwd: cwd.map(Into::into), user: user.map(Into::into), ..request(&["pwd"]) };
        String::from_utf8(agent.run(&request).stdout).unwrap()
    };
    assert_eq!(pwd(None, None), "/root\n");
    assert_eq!(pwd(Some("/usr/lib"), None), "/usr/lib\n");
    assert_eq!(pwd(None, Some("nobody")), "/\n", "a home that does not exist");
}

#[test]
fn users_and_groups_are_assumed_whole() {
    let agent = Agent::start();
    let id = |user: &str| {
        let script = "echo $(id -u) $(id -g) $(id -G) $USER $HOME; cat /proc/self/status > /dev/stdout";
        let output = agent.run(&ExecRequest { user: Some(user.into()), ..shell(script) });
        let text = String::from_utf8(output.stdout).unwrap();
        let uids = text.lines().find(|line| line.starts_with("Uid:")).unwrap();
        assert_eq!(uids.split_whitespace().skip(1).collect::<std::collections::BTreeSet<_>>().len(), 1, "{uids}");
        text.lines().next().unwrap().to_owned()
    };
    assert_eq!(id("nobody"), "65534 65534 65534 nobody /nonexistent");
    assert_eq!(id("65534"), id("nobody"));
    assert_eq!(id("nobody:root"), "65534 0 0 nobody /nonexistent");
    assert_eq!(id("4321:1234"), "4321 1234 1234 4321 /");
    assert_eq!(id("root").split(' ').next(), Some("0"));
}

#[test]
fn a_process_inherits_nothing_of_the_agent() {
    let agent = Agent::start();
    let _other = agent.exec(&with_pipes(request(&["cat"])));
    let (_, fds) = agent.sh("ls /proc/self/fd");
    assert_eq!(fds, "0\n1\n2\n3\n", "3 is the directory itself");
    let (_, status) = agent.sh("exec cat /proc/self/status");
    let mask = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    // The C library keeps 32 and 33 to itself and ignores them in some of what it starts.
    assert_eq!((mask("SigBlk:"), mask("SigIgn:") & !0x1_8000_0000), (0, 0));
    let (_, limit) = agent.sh("ulimit -Sn");
    let ours = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
    assert_eq!(limit.trim(), ours.to_string());
}

#[test]
fn a_timeout_kills_the_whole_group() {
    let agent = Agent::start();
    let request = ExecRequest { timeout_ms: Some(300), ..shell("sleep 1000 & sleep 1000") };
    let began = Instant::now();
    let mut exec = agent.exec(&request);
    let event = exec.next_event().unwrap();
    assert_eq!(event, Event::Exited { status: ExitStatus::Signal(9), timed_out: true });
    assert!(began.elapsed() >= Duration::from_millis(300));
    eventually("nobody of the group is left", || !group_lives(exec.pid));
}

#[test]
fn a_process_that_ends_in_time_has_not_timed_out() {
    let agent = Agent::start();
    for timeout_ms in [20_000, u64::MAX] {
        let output = agent.run(&ExecRequest { timeout_ms: Some(timeout_ms), ..shell("exit 5") });
        assert_eq!((output.status, output.timed_out), (ExitStatus::Code(5), false));
    }
}

#[test]
fn a_background_process_that_holds_the_pipe_holds_nobody_up() {
    let agent = Agent::start();
    let began = Instant::now();
    let (status, text) = agent.sh("echo before; sleep 25 & exit 6");
    assert_eq!((status, text.as_str()), (ExitStatus::Code(6), "before\n"));
    assert!(began.elapsed() < Duration::from_secs(20));
    // It goes on: only the session is over. The agent has inherited it.
    let orphan = processes().into_iter().find(|(_, state, parent, _)| *parent == agent.pid() && *state != 'Z');
    let (_, _, _, group) = orphan.unwrap();
    let (status, _) = agent.sh(&format!("kill -9 -{group}"));
    assert_eq!(status, ExitStatus::Code(0));
}

#[test]
fn output_written_just_before_the_end_is_never_lost() {
    let agent = Agent::start();
    for _ in 0..20 {
        let output = agent.run(&shell("head -c 60000 /dev/zero; (sleep 5 &) ; exit 1"));
        assert_eq!((output.status, output.stdout.len()), (ExitStatus::Code(1), 60_000));
    }
}

#[test]
fn a_hundred_run_at_once() {
    let agent = Agent::start();
    let gate = tempfile::tempdir().unwrap();
    let gate_path = gate.path().join("open");
    let execs: Vec<_> = (0..100)
        .map(|number| {
            let script = format!("until test -e {}; do sleep 0.2; done; exit {number}", gate_path.display());
            agent.exec(&shell(&script))
        })
        .collect();
    // All hundred have said that they run; only now may any of them end.
    fs::write(&gate_path, "").unwrap();
    let waiting: Vec<_> = execs.into_iter().map(|mut exec| thread::spawn(move || exec.next_event())).collect();
    for (number, exited) in (0_i32..).zip(waiting) {
        let status = ExitStatus::Code(number);
        assert_eq!(exited.join().unwrap().unwrap(), Event::Exited { status, timed_out: false });
    }
}

#[test]
fn orphans_leave_no_zombies() {
    let agent = Agent::start();
    let (_, pid) = agent.sh("(sleep 0.1 & echo $!)");
    let orphan: u32 = pid.trim().parse().unwrap();
    eventually("the orphan is reaped", || stat(orphan).is_none());
    agent.connect().exec(&request(&["no-such-program"])).unwrap_err();
    eventually("no zombie is left", || {
        !processes().iter().any(|(_, state, parent, _)| *parent == agent.pid() && *state == 'Z')
    });
}
