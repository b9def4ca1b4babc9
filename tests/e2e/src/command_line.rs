//! The verbs that ask the daemon, over stand-ins for VMs: what they print, and that a daemon is there when it is needed.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use bench::home::{Home, TAG, Vms};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Test;
use crate::host::Host;
use crate::world::wait_until;

pub(crate) const TESTS: &[Test] = &[
    ("command_line::it_asks_the_daemon", it_asks_the_daemon),
    ("command_line::sandboxes_are_forked_and_used", sandboxes_are_forked_and_used),
    ("command_line::streams_and_signals_cross", streams_and_signals_cross),
    ("command_line::what_is_attached_goes_with_forkd", what_is_attached_goes_with_forkd),
    ("command_line::a_sandbox_answers_at_its_address", a_sandbox_answers_at_its_address),
    ("command_line::a_daemon_starts_by_itself", a_daemon_starts_by_itself),
    ("command_line::an_older_daemon_is_replaced", an_older_daemon_is_replaced),
    ("command_line::a_service_is_found_at_the_usual_address", a_service_is_found_at_the_usual_address),
    ("command_line::a_console_is_followed_to_its_end", a_console_is_followed_to_its_end),
    ("command_line::the_verbs_are_measured", the_verbs_are_measured),
    ("command_line::shells_and_man_know_it", shells_and_man_know_it),
];

/// Standard output of a command that must succeed, trimmed.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {stderr}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

fn it_asks_the_daemon(host: &Host) -> Result<()> {
    let home = Home::new(&std::env::temp_dir(), Vms::StandIns)?;
    let forkd = |words: &[&str]| said(host.forkd().args(words).env("FORKD_URL", &home.url));
    let made: Value = serde_json::from_str(&forkd(&["spawn", "--tag", TAG, "-n", "2", "--label", "a=b", "--json"])?)?;
    let id = made[0]["id"].as_str().context("an id")?;
    ensure!(made[1]["labels"]["a"] == "b", "{made}");
    ensure!(forkd(&["spawn", "--tag", TAG])?.starts_with("ID "), "a table has a heading");
    ensure!(forkd(&["pause", id])? == format!("{id} paused"));
    ensure!(forkd(&["resume", id])? == format!("{id} running"));
    copies(&forkd, id)?;
    ensure!(forkd(&["workspace", "create", "w", "--snapshot", TAG])?.starts_with("w running as sb-"));
    ensure!(forkd(&["workspace", "suspend", "w"])? == "w suspended");
    ensure!(forkd(&["workspace", "list"])?.lines().nth(1).is_some_and(|line| line.starts_with("w     suspended")));
    ensure!(forkd(&["workspace", "resume", "w"])?.starts_with("w running as sb-"));
    ensure!(forkd(&["workspace", "delete", "w"])? == "w");
    ensure!(forkd(&["logs", "--tail", "1", id])?.is_empty(), "a stand-in says nothing");
    let refused = host.forkd().args(["pause", "sb-0-0"]).env("FORKD_URL", &home.url).output()?;
    let stderr = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(1) && stderr.contains("there is no sandbox"), "{stderr}");
    let nobody = host.forkd().args(["pause", id]).env("FORKD_URL", "http://127.0.0.1:1").output()?;
    let stderr = String::from_utf8_lossy(&nobody.stderr);
    ensure!(nobody.status.code() == Some(1) && stderr.contains("no daemon can be reached"), "{stderr}");
    let nonsense = host.forkd().args(["pause", id]).env("FORKD_URL", "localhost").output()?;
    ensure!(nonsense.status.code() == Some(2), "{nonsense:?}");
    Ok(())
}

/// The ids of a fork's report.
fn ids(report: &Value) -> Vec<String> {
    let children = report["children"].as_array().into_iter().flatten();
    children.filter_map(|child| child["id"].as_str().map(str::to_owned)).collect()
}

fn sandboxes_are_forked_and_used(host: &Host) -> Result<()> {
    let home = Home::new(&std::env::temp_dir(), Vms::StandIns)?;
    let command = |words: &[&str]| {
        let mut command = host.forkd();
        command.args(words).env("FORKD_URL", &home.url);
        command
    };
    let forkd = |words: &[&str]| said(&mut command(words));
    let report: Value = serde_json::from_str(&forkd(&["fork", "--tag", TAG, "-n", "3", "-e", "A=b", "--json"])?)?;
    let made = ids(&report);
    ensure!(made.len() == 3 && report["n"] == 3 && report["ready_us"].as_u64() > Some(0), "{report}");
    let told = forkd(&["fork", "--tag", TAG, "-n", "1"])?;
    ensure!(told.contains("✓ 1 / 1 children ready") && told.ends_with("✓ 1 / 1 children alive"), "{told}");
    let listed: Value = serde_json::from_str(&forkd(&["ls", "--json"])?)?;
    ensure!(listed.as_array().is_some_and(|all| all.len() == 4) && listed[0]["memory"].is_object(), "{listed}");
    // The beginning of an id will do, as long as it could mean only one.
    let short = made[0].trim_start_matches("sb-");
    let pong: Value = serde_json::from_str(&forkd(&["ping", "--child", short])?)?;
    ensure!(pong["pong"] == true && pong["id"] == made[0].as_str(), "{pong}");
    let vague = command(&["exec", "sb-", "--", "true"]).output()?;
    let stderr = String::from_utf8_lossy(&vague.stderr);
    ensure!(vague.status.code() == Some(1) && stderr.contains("write more of the id"), "{stderr}");
    let nobody = command(&["eval", "sb-0-0", "1"]).output()?;
    ensure!(String::from_utf8_lossy(&nobody.stderr).contains("there is no sandbox"), "{nobody:?}");
    ensure!(forkd(&["ls"])?.starts_with("ID"), "a heading");
    ensure!(forkd(&["kill", &made[0], "--child", &made[1], "--json"])? == serde_json::to_string(&made[..2])?);
    ensure!(forkd(&["kill", "--tag", TAG])?.lines().count() == 2);
    ensure!(forkd(&["ls"])?.lines().count() == 1, "only the heading is left");
    ensure!(forkd(&["kill", "--all"])?.is_empty());
    let settled = forkd(&["fork", "--tag", TAG, "-n", "2", "--settle-secs", "0"])?;
    ensure!(settled.ends_with("✓ 2 / 2 children alive"), "{settled}");
    ensure!(engine::list(&home.dirs)?.is_empty(), "they are ended when it ends");
    ensure!(forkd(&["run", "--tag", TAG, "--", "echo", "ran"])? == "ran");
    ensure!(engine::list(&home.dirs)?.is_empty(), "it is ended when it ends");
    Ok(())
}

fn streams_and_signals_cross(host: &Host) -> Result<()> {
    let home = Home::new(&std::env::temp_dir(), Vms::StandIns)?;
    let made = home.post("/v1/sandboxes", &serde_json::json!({ "snapshot_tag": TAG }))?;
    let id = made[0]["id"].as_str().context("an id")?;
    let exec = |words: &[&str]| {
        let mut command = host.forkd();
        command.args(["exec", id, "--env", "A=b", "--"]).args(words).env("FORKD_URL", &home.url);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let output = exec(&["sh", "-c", "echo out $A; echo err >&2; exit 7"]).output()?;
    ensure!((&*output.stdout, &*output.stderr, output.status.code()) == (b"out b\n", b"err\n", Some(7)), "{output:?}");
    let killed = exec(&["sh", "-c", "kill -9 $$"]).output()?;
    ensure!(killed.status.code() == Some(137), "{killed:?}");
    let missing = exec(&["/no/such/program"]).output()?;
    let stderr = String::from_utf8_lossy(&missing.stderr);
    ensure!(missing.status.code() == Some(127) && stderr.starts_with("forkd: "), "{missing:?}");
    // What is no text, and more of it than any buffer holds.
    let mut cat = exec(&["cat"]).stdin(Stdio::piped()).spawn()?;
    let mut input = cat.stdin.take().context("its input")?;
    let bytes: Vec<u8> = (0..3 << 20).map(|n: u32| n.to_le_bytes()[0] ^ 0x80).collect();
    let sent = bytes.clone();
    let feeder = std::thread::spawn(move || input.write_all(&sent));
    let output = cat.wait_with_output()?;
    feeder.join().ok().context("the feeder died")??;
    ensure!(output.stdout == bytes && output.status.success(), "{:?}", output.status);
    // The first interrupt is the command's, the second ends it, and so does a reader who leaves.
    let script = "trap 'echo heard' INT; echo ready; while :; do sleep 0.05; done";
    let mut shell = exec(&["sh", "-c", script]).spawn()?;
    let pid = Pid::from_raw(i32::try_from(shell.id())?).context("a process")?;
    let mut lines = BufReader::new(shell.stdout.take().context("its output")?).lines();
    for expected in ["ready", "heard"] {
        ensure!(lines.next().context("a line")?? == expected);
        kill_process(pid, Signal::INT)?;
    }
    ensure!(shell.wait()?.code() == Some(130), "as of one that was interrupted");
    let mut shell = exec(&["sh", "-c", "while :; do echo more; sleep 0.05; done"]).spawn()?;
    drop(shell.stdout.take());
    ensure!(shell.wait()?.code() == Some(141), "as of one whose reader left");
    Ok(())
}

fn what_is_attached_goes_with_forkd(host: &Host) -> Result<()> {
    let home = Home::new(&std::env::temp_dir(), Vms::StandIns)?;
    let mut command = host.forkd();
    command.args(["fork", "--tag", TAG, "-n", "2", "--settle-secs", "3600"]).env("FORKD_URL", &home.url);
    for signal in [Signal::TERM, Signal::KILL] {
        let mut forkd = command.stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(forkd.stdout.take().context("its output")?).lines();
        ensure!(lines.next().context("a line")??.starts_with("✓ all sockets up in"));
        ensure!(engine::list(&home.dirs)?.len() == 2);
        kill_process(Pid::from_raw(i32::try_from(forkd.id())?).context("a process")?, signal)?;
        forkd.wait()?;
        wait_until("their end", Duration::from_secs(60), || engine::list(&home.dirs).is_ok_and(|it| it.is_empty()))?;
    }
    Ok(())
}

/// In a network of the test's own, where nothing else is.
fn a_sandbox_answers_at_its_address(host: &Host) -> Result<()> {
    const SCRIPT: &str = r#"
        hold() { exec "$FORKD" fork --tag nothing -n 1 --settle-secs 3600 "$@"; }
        trap 'kill $pid $other 2> /dev/null || true' EXIT
        hold > /dev/null & pid=$!
        for _ in $(seq 100); do "$FORKD" ping --target 10.42.0.2:8888 2> /dev/null && break; sleep 0.1; done
        "$FORKD" exec -- echo by the usual address
        "$FORKD" exec --target 10.42.0.2:8888 -- sh -c 'exit 7' || echo "code $?"
        "$FORKD" exec --target 10.42.0.2:8888 --timeout-secs 0.2 -- sh -c 'sleep 60' 2> /dev/null || echo "code $?"
        "$FORKD" eval --target 10.42.0.2:8888 -- 'what a stand-in says again'
        hold 2>&1 | grep -o 'leads to another VM'
        hold --target 127.0.0.1:7777 > /dev/null & other=$!
        for _ in $(seq 100); do FORKD_TARGET=127.0.0.1:7777 "$FORKD" exec -- echo by another && break; sleep 0.1; done 2> /dev/null
        "$FORKD" fork --tag nothing -n 1 --settle-secs 0 --target none | tail -n 1
        kill -TERM $other; wait $other || echo "code $?"
        kill -KILL $pid; wait $pid || echo "code $?"
        "$FORKD" ping 2> /dev/null || echo nobody"#;
    let home = Home::new(&std::env::temp_dir(), Vms::StandIns)?;
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-ec", SCRIPT]).env("FORKD", &host.forkd).env_remove("FORKD_TARGET");
    command.env("FORKD_URL", format!("unix:{}", home.dirs.run.join("forkd.sock").display()));
    let text = said(&mut command)?;
    let (pong, rest) = text.split_once('\n').context("more than a line")?;
    ensure!(pong.contains(r#""pong":true"#), "{pong}");
    let expected = "by the usual address\ncode 7\ncode 124\nwhat a stand-in says again\nleads to another VM\nby another\n\
                    ✓ 1 / 1 children alive\ncode 143\ncode 137\nnobody";
    ensure!(rest == expected, "{rest}");
    wait_until("their end", Duration::from_secs(60), || engine::list(&home.dirs).is_ok_and(|it| it.is_empty()))
}

/// A stand-in's files are this host's, so they are below a directory of the test's own.
fn copies(forkd: &impl Fn(&[&str]) -> Result<String>, id: &str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let text = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    fs::write(text("from"), vec![7; 3 << 20])?;
    forkd(&["cp", &text("from"), &format!("{id}:{}", text("inside"))])?;
    fs::write(text("to"), "before")?;
    fs::set_permissions(text("to"), PermissionsExt::from_mode(0o640))?;
    let copied = forkd(&["cp", &format!("{id}:{}", text("inside")), &text("to"), "--json"])?;
    ensure!(copied.contains(r#""bytes":3145728"#) && copied.contains(&text("to")), "{copied}");
    ensure!(fs::read(text("to"))? == vec![7; 3 << 20]);
    ensure!(fs::metadata(text("to"))?.permissions().mode() & 0o777 == 0o640, "it has another mode");
    ensure!(forkd(&["cp", &format!("{id}:{}", text("none")), &text("to")]).is_err());
    ensure!(fs::metadata(text("to"))?.len() == 3 << 20, "what could not be copied left what was there");
    Ok(())
}

fn a_daemon_starts_by_itself(host: &Host) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let list = || {
        let mut command = host.forkd();
        command.args(["workspace", "list", "--json"]).env("FORKD_HOME", dir.path()).env("FORKD_PLACE", "local");
        command
    };
    // Several at once agree on one.
    let lists = (0..8).map(|_| Ok(list().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?));
    let lists = lists.collect::<Result<Vec<_>>>()?;
    for one in lists {
        let output = one.wait_with_output()?;
        ensure!(output.status.success() && output.stdout == b"[]\n", "{output:?}");
    }
    let daemons = daemons(dir.path())?;
    ensure!(daemons.len() == 1, "{daemons:?}");
    ensure!(said(&mut list())? == "[]");
    let pid = Pid::from_raw(daemons[0]).context("a process")?;
    kill_process(pid, Signal::TERM)?;
    wait_until("the daemon's end", Duration::from_secs(60), || !dir.path().join("run/forkd.sock").exists())
}

fn an_older_daemon_is_replaced(host: &Host) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let command = |words: &[&str]| {
        let mut command = host.forkd();
        command.args(words).env("FORKD_HOME", dir.path()).env("FORKD_PLACE", "local");
        command
    };
    let status =
        || Ok::<Value, anyhow::Error>(serde_json::from_str(&said(&mut command(&["daemon", "status", "--json"]))?)?);
    ensure!(status()?["status"] == "stopped" && daemons(dir.path())?.is_empty(), "asking starts none");
    ensure!(said(&mut command(&["ls", "--json"]))? == "[]");
    let first = status()?;
    ensure!(first["status"] == "running" && first["idle_secs"] == 600 && first["sandboxes"] == 0, "{first}");
    // It was started long before this program was built.
    let make_old =
        || fs::File::options().write(true).open(dir.path().join("run/daemon.lock"))?.set_modified(UNIX_EPOCH);
    make_old()?;
    let output = command(&["ls"]).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && stderr.contains("older build") && stderr.contains("was replaced"), "{stderr}");
    ensure!(status()?["pid"] != first["pid"]);
    said(&mut command(&["daemon", "stop"]))?;
    ensure!(status()?["status"] == "stopped" && daemons(dir.path())?.is_empty());
    // One that somebody started is left alone.
    let mut serve = command(&["serve", "--socket-only"]).stderr(Stdio::null()).spawn()?;
    let socket = dir.path().join("run/forkd.sock");
    wait_until("a daemon that listens", Duration::from_secs(60), || UnixStream::connect(&socket).is_ok())?;
    make_old()?;
    said(&mut command(&["ls"]))?;
    ensure!(status()?["pid"] == serve.id() && status()?["idle_secs"] == Value::Null);
    said(&mut command(&["daemon", "stop"]))?;
    ensure!(serve.wait()?.success());
    Ok(())
}

/// In a network of the test's own, where nobody else has that address.
fn a_service_is_found_at_the_usual_address(host: &Host) -> Result<()> {
    const SCRIPT: &str = r#"
        ip link set lo up
        FORKD_HOME=$PWD/service "$FORKD" serve --token-file token 2> log & pid=$!
        trap 'kill $pid' EXIT
        for _ in $(seq 300); do grep -q 127.0.0.1:8889 log && break; sleep 0.1; done
        "$FORKD" ls 2>&1 | grep -o 'FORKD_TOKEN or --daemon-token'
        FORKD_TOKEN=$(cat token) "$FORKD" ls --json
        FORKD_TOKEN=$(cat token) "$FORKD" doctor | grep -o 'http://127.0.0.1:8889, 0 snapshots'
        "$FORKD" doctor | grep -o 'missing bearer token'
        test ! -e run/forkd || echo one of its own was started
        FORKD_HOME=$PWD/service "$FORKD" daemon status | grep -o 'somebody started it'
        FORKD_HOME=$PWD/mine "$FORKD" ls --json
        FORKD_HOME=$PWD/mine "$FORKD" daemon stop > /dev/null
        FORKD_URL=http://127.0.0.1:1 "$FORKD" doctor | grep -o 'no daemon can be reached'"#;
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("token"), "0123456789abcdef0123456789abcdef")?;
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-ec", SCRIPT]).env("FORKD", &host.forkd).current_dir(dir.path());
    command.env("HOME", dir.path()).env("XDG_RUNTIME_DIR", dir.path().join("run")).env("FORKD_PLACE", "local");
    command.env_remove("FORKD_HOME").env_remove("FORKD_URL").env_remove("FORKD_TOKEN");
    let expected = "FORKD_TOKEN or --daemon-token\n[]\nhttp://127.0.0.1:8889, 0 snapshots\nmissing bearer token\n\
                    somebody started it\n[]\nno daemon can be reached";
    let text = said(&mut command)?;
    ensure!(text == expected, "{text}");
    Ok(())
}

/// A stand-in's console is what is written to its file.
fn a_console_is_followed_to_its_end(host: &Host) -> Result<()> {
    let home = Home::new(&std::env::temp_dir(), Vms::StandIns)?;
    let made = home.post("/v1/sandboxes", &serde_json::json!({ "snapshot_tag": TAG }))?;
    let id = made[0]["id"].as_str().context("an id")?;
    let path = engine::open(id, &home.dirs)?.path().join("console.log");
    fs::write(&path, "first\nsecond\n")?;
    let logs = |words: &[&str]| {
        let mut command = host.forkd();
        command.arg("logs").args(words).arg(id).env("FORKD_URL", &home.url).stdout(Stdio::piped());
        command
    };
    ensure!(said(&mut logs(&[]))? == "first\nsecond" && said(&mut logs(&["--tail", "1"]))? == "second");
    let mut following = logs(&["--tail", "1", "-f"]).spawn()?;
    let mut lines = BufReader::new(following.stdout.take().context("its output")?).lines();
    let mut console = fs::File::options().append(true).open(&path)?;
    for expected in ["second", "third", "fourth"] {
        ensure!(lines.next().context("a line")?? == expected);
        console.write_all(if expected == "second" { b"third\n" } else { b"fourth\n" })?;
    }
    home.delete(id)?;
    ensure!(lines.all(|line| line.is_ok_and(|line| line == "fourth")), "something else was said");
    ensure!(following.wait()?.success(), "it ends with the sandbox");
    Ok(())
}

fn the_verbs_are_measured(host: &Host) -> Result<()> {
    let home = Home::new(&std::env::temp_dir(), Vms::StandIns)?;
    let forkd = |words: &[&str]| said(host.forkd().args(words).env("FORKD_URL", &home.url));
    let measured: Value = serde_json::from_str(&forkd(&["bench", "--n", "2", "--json"])?)?;
    ensure!(measured["tag"] == TAG && measured["n"] == 2, "{measured}");
    for step in ["spawn_ms", "exec_ms", "branch_ms", "fan_out_ms", "cleanup_ms"] {
        ensure!(measured[step].as_f64().is_some_and(|ms| ms > 0.0), "{step}: {measured}");
    }
    ensure!(forkd(&["bench", "--tag", TAG])?.contains("\nfork 5 of the branch "));
    ensure!(engine::list(&home.dirs)?.is_empty(), "its sandboxes are left");
    ensure!(forkd(&["images"])?.contains("\n1 snapshot, "), "its branch is left");
    ensure!(forkd(&["cleanup"])? == "nothing to remove");
    Ok(())
}

/// The daemons of this home.
fn daemons(home: &Path) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let read = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
        let ours = String::from_utf8_lossy(&read("environ")).contains(&*home.to_string_lossy());
        if ours && String::from_utf8_lossy(&read("cmdline")).contains("--socket-only") {
            found.push(pid);
        }
    }
    Ok(found)
}

fn shells_and_man_know_it(host: &Host) -> Result<()> {
    for shell in ["bash", "zsh", "fish"] {
        ensure!(said(host.forkd().args(["completions", shell]))?.contains("workspace"), "{shell}");
    }
    let dir = tempfile::tempdir()?;
    said(host.forkd().arg("man").arg(dir.path()))?;
    let page = fs::read_to_string(dir.path().join("forkd-fork.1")).context("forkd-fork.1")?;
    ensure!(page.contains("\\-\\-memory\\-limit\\-mib"), "{page}");
    Ok(())
}
