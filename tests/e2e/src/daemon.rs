//! The daemon over real VMs: used over HTTP, killed in between, started again.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::Test;
use crate::fork::Parent;
use crate::host::Host;
use crate::serving::{Daemon, PATIENCE};
use crate::world::wait_until;

pub(crate) const TESTS: &[Test] = &[
    ("daemon::it_serves_and_is_killed_and_goes_on", it_serves_and_is_killed_and_goes_on),
    ("daemon::files_and_processes_stand_still_and_go_on", files_and_processes_stand_still_and_go_on),
];

const BRANCH: &str = "e2e-daemon-branch";

fn sh(daemon: &Daemon, id: &str, script: &str) -> Result<String> {
    daemon.exec(id, &["sh", "-c", script])
}

fn it_serves_and_is_killed_and_goes_on(host: &Host) -> Result<()> {
    let mut daemon = Daemon::start(host)?;
    let done = it_goes_on(host, &mut daemon);
    // Whatever became of it, a next try finds nothing of it.
    for path in ["/v1/workspaces/e2e-w".to_owned(), format!("/v1/snapshots/{BRANCH}?force=true")] {
        drop(daemon.ask("DELETE", &path, None));
    }
    done?;
    daemon.kill()
}

fn it_goes_on(host: &Host, daemon: &mut Daemon) -> Result<()> {
    let tag = host.parent(Parent::Warm)?.to_string();
    let ids = daemon.spawn(&tag, 2)?;
    let path = format!("/v1/sandboxes/{}", ids[0]);
    ensure!(sh(daemon, &ids[0], "echo $((6 * 7)); hostname")? == format!("42\n{}", ids[0]));
    ensure!(daemon.expect(200, "POST", &format!("{path}/ping"), None)?["pong"] == true);
    daemon.expect(
        200,
        "POST",
        &format!("{path}/eval"),
        Some(&json!({ "code": "kept = int(numpy.arange(4).sum())" })),
    )?;
    sh(daemon, &ids[0], "echo disk > /root/mark; echo memory > /run/mark")?;
    // A branch has all of it, and its source goes on.
    let taken = daemon.expect(201, "POST", &format!("{path}/branch"), Some(&json!({ "tag": BRANCH })))?;
    ensure!(taken["status"] == "ready" && taken["pause_ms"].as_f64().is_some_and(|pause| pause > 0.0), "{taken}");
    let copies = daemon.spawn(BRANCH, 1)?;
    ensure!(sh(daemon, &copies[0], "cat /root/mark /run/mark")? == "disk\nmemory");
    // A workspace outlives its sandbox and the daemon, memory and disk.
    let workspace = json!({ "name": "e2e-w", "snapshot_tag": BRANCH, "env": { "MINE": "yes" } });
    let made = daemon.expect(201, "POST", "/v1/workspaces", Some(&workspace))?;
    let live = made["live_sandbox_id"].as_str().context("a sandbox")?;
    sh(daemon, live, "echo later >> /root/mark; echo later >> /run/mark; sync")?;
    daemon.expect(200, "POST", "/v1/workspaces/e2e-w/suspend", Some(&json!({})))?;
    ensure!(engine::open(live, &host.dirs).is_err(), "its sandbox still lives");
    daemon.kill()?;
    daemon.start_again()?;
    // Nobody removes its state by removing all that is made of what it was forked from.
    daemon.expect(409, "DELETE", &format!("/v1/snapshots/{BRANCH}?cascade=true"), None)?;
    let resumed = daemon.expect(200, "POST", "/v1/workspaces/e2e-w/resume", None)?;
    let live = resumed["live_sandbox_id"].as_str().context("a sandbox")?;
    ensure!(sh(daemon, live, "cat /root/mark /run/mark; echo $MINE")? == "disk\nlater\nmemory\nlater\nyes");
    // What ran when it was killed still runs, and is still what it was.
    let evaluated = daemon.expect(200, "POST", &format!("{path}/eval"), Some(&json!({ "code": "kept" })))?;
    ensure!(evaluated["result"] == "6", "{evaluated}");
    daemon.expect(204, "DELETE", "/v1/workspaces/e2e-w", None)?;
    for id in ids.iter().chain(&copies) {
        daemon.expect(204, "DELETE", &format!("/v1/sandboxes/{id}"), None)?;
        ensure!(engine::open(id, &host.dirs).is_err(), "{id} still lives");
    }
    daemon.expect(204, "DELETE", &format!("/v1/snapshots/{BRANCH}"), None)?;
    ensure!(daemon.ask("GET", &path, None)?.0 == 404);
    Ok(())
}

fn files_and_processes_stand_still_and_go_on(host: &Host) -> Result<()> {
    let tag = host.parent(Parent::Warm)?.to_string();
    let mut daemon = Daemon::start(host)?;
    let id = daemon.spawn(&tag, 1)?.remove(0);
    let path = format!("/v1/sandboxes/{id}");
    // An emulated guest needs longer for it than the first ping waits.
    wait_until("a guest that says which numpy it has", PATIENCE, || {
        daemon.expect(200, "POST", &format!("{path}/ping"), None).is_ok_and(|pong| {
            pong["agent_lang"] == "python" && pong["numpy_version"].as_str().is_some_and(|it| it.contains('.'))
        })
    })?;
    // A file in, as it is, and looked at.
    let text = json!({ "six": [6] });
    let written =
        daemon.expect(200, "PUT", &format!("{path}/files?path=/root/a/b&parents=true&mode=0600"), Some(&text))?;
    ensure!(written["kind"] == "file" && written["mode"] == "0600", "{written}");
    ensure!(daemon.expect(200, "GET", &format!("{path}/files/stat?path=/root/a/b"), None)? == written);
    ensure!(sh(&daemon, &id, "cat /root/a/b")? == text.to_string());
    let gone = daemon.expect(404, "GET", &format!("{path}/files?path=/root/none"), None)?;
    ensure!(gone["code"] == "file_not_found", "{gone}");
    // A process that reads, writes and waits, without anybody.
    let script = "cat > /run/heard; exit 7";
    let body = json!({ "args": ["sh", "-c", script] });
    let process = daemon.expect(201, "POST", &format!("{path}/processes"), Some(&body))?;
    let process = format!("{path}/processes/{}", process["id"].as_str().context("an id")?);
    daemon.expect(200, "POST", &format!("{path}/pause"), None)?;
    let refused = daemon.expect(409, "GET", &process, None)?;
    ensure!(refused["code"] == "sandbox_paused", "{refused}");
    daemon.kill()?;
    daemon.start_again()?;
    ensure!(daemon.expect(200, "GET", &path, None)?["status"] == "paused");
    ensure!(daemon.expect(200, "POST", &format!("{path}/resume"), None)?["status"] == "running");
    daemon.expect(204, "POST", &format!("{process}/stdin?close=true"), Some(&json!("on")))?;
    wait_until("the process's end", PATIENCE, || {
        daemon.expect(200, "GET", &process, None).is_ok_and(|process| process["exit_code"] == 7)
    })?;
    ensure!(sh(&daemon, &id, "cat /run/heard")? == "\"on\"");
    daemon.expect(204, "DELETE", &process, None)?;
    the_console_is_followed(&daemon, &id)?;
    daemon.kill()
}

/// To the sandbox's end, by the command line.
fn the_console_is_followed(daemon: &Daemon, id: &str) -> Result<()> {
    let mut logs = daemon.forkd().args(["logs", "-f", id]).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(logs.stdout.take().context("its output")?).lines();
    sh(daemon, id, "echo by way of the console > /dev/console")?;
    let is_said =
        |line: &std::io::Result<String>| line.as_ref().is_ok_and(|line| line.contains("by way of the console"));
    ensure!(lines.any(|line| is_said(&line)), "the console does not say it");
    daemon.expect(204, "DELETE", &format!("/v1/sandboxes/{id}"), None)?;
    lines.try_for_each(|line| line.map(drop))?;
    ensure!(logs.wait()?.success(), "it ends with the sandbox");
    Ok(())
}
