//! The demonstration behind `make demo`: `forkd quickstart`, of which nothing stays, nor a daemon that was not there before.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::forkd::binary;

/// How many forks; `N=100 make demo` makes a hundred.
const COUNT_VAR: &str = "N";
const COUNT: u32 = 10;

/// Shows it.
pub(crate) fn run() -> Result<()> {
    let count = match std::env::var(COUNT_VAR) {
        Ok(text) if !text.is_empty() => text.parse().with_context(|| format!("{COUNT_VAR}={text} is not a number"))?,
        _ => COUNT,
    };
    let had_daemon = json(&["daemon", "status", "--json"])?["status"] == "running";
    let shown = forkd(&["quickstart", "-y", "--rm", "-n", &count.to_string()]);
    let tidied = if had_daemon { Ok(()) } else { end_daemon() };
    shown.and(tidied)
}

/// Nobody needs to hear of it.
fn end_daemon() -> Result<()> {
    let output = Command::new(binary()?).args(["daemon", "stop"]).output()?;
    ensure!(output.status.success(), "forkd daemon stop: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Runs a command of forkd's for a person to see.
fn forkd(words: &[&str]) -> Result<()> {
    let status = Command::new(binary()?).args(words).status()?;
    ensure!(status.success(), "forkd {} ended with {status}", words.join(" "));
    Ok(())
}

/// What a command of forkd's prints.
fn json(words: &[&str]) -> Result<Value> {
    let output = Command::new(binary()?).args(words).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "forkd {} ended with {}: {said}", words.join(" "), output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("forkd {}", words.join(" ")))
}
