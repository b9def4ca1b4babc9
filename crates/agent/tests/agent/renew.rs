//! What a renewal changes: files, environments, generators, and whatever the image's hooks do.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use session::{ErrorCode, EvalRequest, ExecRequest, ExitStatus, RenewRequest, SessionError};

use crate::support::{Agent, eventually, group_lives, renewal, shell};

fn refused(agent: &Agent, request: &RenewRequest) -> String {
    match agent.connect().renew(request) {
        Err(SessionError::Refused { code: ErrorCode::Failed, message }) => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn value(agent: &Agent, code: &str) -> String {
    let evaluation = agent.connect().eval(&EvalRequest { code: code.into(), timeout_ms: 30_000 }).unwrap();
    assert_eq!(evaluation.error, None, "{code}");
    evaluation.value.unwrap_or_default()
}

fn hook(agent: &Agent, name: &str, script: &str, mode: u32) {
    let directory = agent.root().join("etc/forkd/renew.d");
    fs::create_dir_all(&directory).unwrap();
    // Under its final name only when it is complete: a file that is open for writing cannot be executed.
    fs::write(directory.join(name), script).unwrap();
    fs::set_permissions(directory.join(name), fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_environment_reaches_what_is_started_and_is_replaced() {
    let agent = Agent::start_renewed(&[("A", "one two"), ("B", "b")]);
    assert_eq!(agent.sh("echo $A,$B").1, "one two,b\n");
    let explicit = ExecRequest { env: BTreeMap::from([("A".into(), "mine".into())]), ..shell("echo $A,$B") };
    assert_eq!(agent.run(&explicit).stdout, b"mine,b\n");
    agent.connect().renew(&renewal(&[("A", "three")])).unwrap();
    assert_eq!(agent.sh("echo $A,${B-unset}").1, "three,unset\n");
    assert_eq!(fs::read_to_string(agent.root().join("run/forkd/env")).unwrap(), "A='three'\n");
}

#[test]
fn the_interpreter_gets_the_environment_and_other_randomness() {
    let agent = Agent::start_renewed(&[("OLD", "1")]);
    let read = "import os\nos.environ.get('OLD'), os.environ.get('NEW'), os.getenv('PATH') is not None";
    assert_eq!(value(&agent, read), "('1', None, True)");
    let seeded = "import random, ssl; random.seed(1); state = random.getstate(); random.gauss(0, 1); 1";
    value(&agent, seeded);
    for _ in 0..2 {
        agent.connect().renew(&renewal(&[("NEW", "2")])).unwrap();
        assert_eq!(value(&agent, read), "(None, '2', True)");
        assert_eq!(value(&agent, "random.seed(1) if random.getstate() == state else 'reseeded'"), "'reseeded'");
        assert_eq!(value(&agent, "os.popen('echo $NEW$OLD').read()"), r"'2\n'");
        value(&agent, "random.seed(1); 1");
    }
}

#[test]
fn a_renewal_does_not_wait_for_running_code() {
    let agent = Agent::start_renewed(&[]);
    let flag = tempfile::NamedTempFile::new().unwrap();
    let code = format!(
        "import os, random, time\nrandom.seed(1)\nopen({:?}, 'w').write('x')\n\
         while 'NEW' not in os.environ: pass\nrandom.random()",
        flag.path()
    );
    thread::scope(|scope| {
        let running = scope.spawn(|| value(&agent, &code));
        eventually("the code runs", || flag.path().metadata().unwrap().len() > 0);
        agent.connect().renew(&renewal(&[("NEW", "1")])).unwrap();
        let drawn: f64 = running.join().unwrap().parse().unwrap();
        assert!((0.0..1.0).contains(&drawn));
    });
    assert_eq!(value(&agent, "random.Random(1).random() == random.random()"), "False");
}

#[test]
fn an_interpreter_that_cannot_answer_is_named_and_holds_nothing_up() {
    let agent = Agent::start_renewed(&[]);
    let pid: i32 = value(&agent, "import os; os.getpid()").parse().unwrap();
    agent.sh(&format!("kill -STOP {pid}"));
    let stopped = format!("cat /proc/{pid}/task/*/stat | grep -qv '^[0-9]* ([^)]*) T'");
    eventually("all its threads have stopped", || agent.sh(&stopped).0 == ExitStatus::Code(1));
    assert!(refused(&agent, &renewal(&[])).starts_with("renew: the interpreter did not answer"));
    agent.sh(&format!("kill -CONT {pid}"));
    agent.connect().renew(&renewal(&[("A", "1")])).unwrap();
    assert_eq!(value(&agent, "os.environ['A']"), "'1'");
}

#[test]
fn hooks_run_in_order_and_know_who_they_run_for() {
    let agent = Agent::start_renewed(&[]);
    let log = agent.root().join("log");
    let say = |what: &str| format!("#!/bin/sh\necho {what} >> {}\n", log.display());
    hook(&agent, "20-last", &say("last $FORKD_SANDBOX_ID $FORKD_GENERATION"), 0o755);
    hook(&agent, "10-first", &say("first $A"), 0o755);
    hook(&agent, "15-plain", &say("plain"), 0o644);
    hook(&agent, ".hidden", &say("hidden"), 0o755);
    for _ in 0..2 {
        agent.connect().renew(&renewal(&[("A", "a")])).unwrap();
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), "first a\nlast sb-1 g-1\n".repeat(2));
}

#[test]
fn a_hook_that_fails_is_named_with_its_last_words() {
    let agent = Agent::start_renewed(&[]);
    hook(&agent, "50-bad", "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x\necho no luck >&2\nexit 7\n", 0o755);
    let message = refused(&agent, &renewal(&[]));
    assert_eq!(message, "renew: hook 50-bad ended with 7: no luck");
    hook(&agent, "50-bad", "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x; echo end; exit 8\n", 0o755);
    let message = refused(&agent, &renewal(&[]));
    assert!(message.ends_with("xend") && message.len() < 4096, "{message}");
    hook(&agent, "50-bad", "#!/bin/sh\n", 0o755);
    hook(&agent, "60-broken", "#!/no/such/interpreter\n", 0o755);
    let message = refused(&agent, &renewal(&[]));
    assert!(message.starts_with("renew: hook 60-broken: "), "{message}");
}

#[test]
fn a_hook_that_hangs_is_killed_and_named() {
    let agent = Agent::start_renewed(&[]);
    let pid_file = agent.root().join("pid");
    hook(&agent, "10-hangs", &format!("#!/bin/sh\necho $$ > {}\nsleep 1000\n", pid_file.display()), 0o755);
    let message = refused(&agent, &renewal(&[]));
    assert_eq!(message, "renew: hook 10-hangs was not done within 5000 ms");
    let group = fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    eventually("the hook is gone", || !group_lives(group));
}

#[test]
fn an_agent_without_a_machine_renews_nothing() {
    let agent = Agent::start();
    assert!(refused(&agent, &renewal(&[("A", "1")])).contains("--root"));
    assert_eq!(agent.sh("echo ${A-unset}").1, "unset\n");
}

#[test]
fn the_answer_carries_a_monotonic_clock() {
    let agent = Agent::start_renewed(&[]);
    let [first, second] = [(); 2].map(|()| agent.connect().renew(&renewal(&[])).unwrap());
    assert!(first.monotonic_ns < second.monotonic_ns);
    assert_eq!(fs::read_to_string(agent.root().join("run/forkd/sandbox-id")).unwrap(), "sb-1\n");
}
