//! The demonstration behind `make demo`: a VM with Python and numpy is warmed up once, forked, and every fork is asked to
//! calculate. Nothing of it stays: what was forked is ended, and a snapshot that was not there before is removed.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::forkd::binary;

const TAG: &str = "pyagent";
const RECIPE: &str = "python-numpy";
const EXPRESSION: &str = "numpy.zeros(5).tolist()";
const ANSWER: &str = "[0.0, 0.0, 0.0, 0.0, 0.0]";
/// How many forks; `N=100 make demo` makes a hundred.
const COUNT_VAR: &str = "N";
const COUNT: usize = 10;
/// How many are asked at once.
const ASKERS: usize = 8;

/// Shows it.
pub(crate) fn run() -> Result<()> {
    let count = match std::env::var(COUNT_VAR) {
        Ok(text) if !text.is_empty() => text.parse().with_context(|| format!("{COUNT_VAR}={text} is not a number"))?,
        _ => COUNT,
    };
    println!("What this machine can do (forkd doctor):\n");
    // A doctor who finds nothing usable has said why; what follows then fails with the same words.
    Command::new(binary()?).arg("doctor").status()?;
    let had_daemon = json(&["daemon", "status", "--json"])?["status"] == "running";
    let ours = snapshot()?;
    let mut ids = Vec::new();
    let shown = show(count, &mut ids);
    let tidied = tidy(&ids, ours);
    if !had_daemon {
        output(&["daemon", "stop"])?;
    }
    shown.and(tidied)
}

/// Makes sure of the snapshot; true when it was made for this.
fn snapshot() -> Result<bool> {
    let images = json(&["images", "--json"])?;
    if images.as_array().into_iter().flatten().any(|image| image["tag"] == TAG) {
        println!("\nThe snapshot {TAG} is there already.");
        return Ok(false);
    }
    println!("\nA VM boots once and imports numpy (forkd snapshot --recipe {RECIPE} --tag {TAG}):\n");
    forkd(&["snapshot", "--recipe", RECIPE, "--tag", TAG])?;
    Ok(true)
}

/// Forks and asks; `ids` are then those that run.
fn show(count: usize, ids: &mut Vec<String>) -> Result<()> {
    println!("\nIt is forked {count} times (forkd fork --tag {TAG} -n {count}):\n");
    let forked = json(&["fork", "--tag", TAG, "-n", &count.to_string(), "--timeout", "600", "--json"])?;
    let children = forked["children"].as_array().context("forkd fork --json lists no children")?;
    ids.extend(children.iter().filter_map(|child| child["id"].as_str()).map(str::to_owned));
    ensure!(children.len() == count, "{} of {count} were forked: {forked}", children.len());
    if let Some(first) = ids.first() {
        let facts = output(&[
            "exec",
            first,
            "--",
            "sh",
            "-c",
            "echo $(uname -sr), $(nproc) vCPU, up $(cut -d' ' -f1 /proc/uptime) s",
        ])?;
        println!("\n  inside the first of them: {facts}\n");
    }
    let begun = Instant::now();
    let answers = ask(children);
    let evaluated = begun.elapsed();
    println!("  {:<22}{:>7}{:>11}{:>13}  {EXPRESSION}", "SANDBOX", "PID", "READY MS", "PRIVATE KiB");
    for (child, answer) in children.iter().zip(&answers) {
        let id = child["id"].as_str().unwrap_or_default();
        println!(
            "  {id:<22}{:>7}{:>11.1}{:>13}  {}",
            child["pid"].as_u64().unwrap_or_default(),
            ms(&child["ready_us"]),
            child["memory"]["private_kib"].as_u64().unwrap_or_default(),
            answer.as_deref().unwrap_or("no answer"),
        );
    }
    let right = answers.iter().filter(|answer| answer.as_deref() == Some(ANSWER)).count();
    println!("\n  {right} of {count} answered right");
    for (stage, name) in
        [("forked_us", "processes forked"), ("started_us", "all vCPUs running"), ("ready_us", "all ready")]
    {
        println!("  {name:<22}{:>10.1} ms after the request", ms(&forked[stage]));
    }
    println!(
        "  {:<22}{:>10.1} ms for all of them, by one `forkd eval` each",
        "evaluated",
        evaluated.as_secs_f64() * 1e3
    );
    ensure!(right == count, "{} of {count} did not answer {ANSWER}", count - right);
    Ok(())
}

/// Asks every child, a few at a time; `None` for one that does not answer.
fn ask(children: &[Value]) -> Vec<Option<String>> {
    let (next, answers) = (AtomicUsize::new(0), Mutex::new(vec![None; children.len()]));
    thread::scope(|scope| {
        for _ in 0..ASKERS.min(children.len()) {
            scope.spawn(|| {
                while let Some((index, child)) = children.iter().enumerate().nth(next.fetch_add(1, Ordering::SeqCst)) {
                    let id = child["id"].as_str().unwrap_or_default();
                    let answer = output(&["eval", "--child", id, "--", EXPRESSION]).ok();
                    answers.lock().expect("no asker panics")[index] = answer;
                }
            });
        }
    });
    answers.into_inner().expect("no asker panics")
}

fn tidy(ids: &[String], snapshot_is_ours: bool) -> Result<()> {
    if !ids.is_empty() {
        output(&[&["kill"], &ids.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat())?;
    }
    if snapshot_is_ours {
        output(&["rmi", TAG])?;
    }
    println!("\nAll of them are ended, and nothing is left.");
    Ok(())
}

fn ms(us: &Value) -> f64 {
    us.as_f64().unwrap_or_default() / 1000.0
}

/// Runs a command of forkd's for a person to see.
fn forkd(words: &[&str]) -> Result<()> {
    let status = Command::new(binary()?).args(words).status()?;
    ensure!(status.success(), "forkd {} ended with {status}", words.join(" "));
    Ok(())
}

/// What a command of forkd's prints; its progress is for a person to see.
fn output(words: &[&str]) -> Result<String> {
    let output = Command::new(binary()?).args(words).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("forkd {} ended with {}", words.join(" "), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn json(words: &[&str]) -> Result<Value> {
    serde_json::from_str(&output(words)?).with_context(|| format!("forkd {}", words.join(" ")))
}
