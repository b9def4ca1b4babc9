//! The verbs that ask the daemon, over stand-ins for VMs: what they print, and that a daemon is there when it is needed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::stand_in::{Home, TAG};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Test;
use crate::host::Host;
use crate::world::wait_until;

pub(crate) const TESTS: &[Test] = &[
    ("command_line::it_asks_the_daemon", it_asks_the_daemon),
    ("command_line::a_daemon_starts_by_itself", a_daemon_starts_by_itself),
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
    let home = Home::new(&std::env::temp_dir())?;
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

/// A stand-in's files are this host's, so they are below a directory of the test's own.
fn copies(forkd: &impl Fn(&[&str]) -> Result<String>, id: &str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let text = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    fs::write(text("from"), vec![7; 3 << 20])?;
    forkd(&["cp", &text("from"), &format!("{id}:{}", text("inside"))])?;
    forkd(&["cp", &format!("{id}:{}", text("inside")), &text("to")])?;
    ensure!(fs::read(text("to"))? == vec![7; 3 << 20]);
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
