//! `forkd` as a user has it before him: here if there is KVM, through the emulated host if not.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::Test;
use crate::host::Host;

pub(crate) const TESTS: &[Test] = &[
    ("cli::run_hands_over_streams_and_code", run_hands_over_streams_and_code),
    ("cli::stdin_crosses", stdin_crosses),
    ("cli::the_doctor_answers_a_person_and_a_program", the_doctor_answers_a_person_and_a_program),
    ("cli::the_store_is_looked_after", the_store_is_looked_after),
    ("cli::bad_words_are_usage_errors", bad_words_are_usage_errors),
];

/// The user's binary, ended after three minutes: an emulated host that hangs must not hang the tests.
fn forkd(host: &Host) -> Command {
    let mut command = Command::new("timeout");
    command.arg("180").arg(&host.forkd).stdin(Stdio::null());
    command
}

fn run_hands_over_streams_and_code(host: &Host) -> Result<()> {
    let output = forkd(host).args(["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(7), "{:?}: {stderr}", output.status);
    ensure!(output.stdout == b"out\n");
    ensure!(stderr.contains("err\n"), "{stderr}");
    let told = stderr.contains("emulated host");
    ensure!(told != host.has_kvm(), "where it ran is told wrongly: {stderr}");
    Ok(())
}

fn stdin_crosses(host: &Host) -> Result<()> {
    let mut command = forkd(host);
    command.args(["run", "--", "sh", "-c", "wc -c; kill -9 $$"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    child.stdin.take().context("its input")?.write_all(&vec![7; 3 << 20])?;
    let output = child.wait_with_output()?;
    ensure!((output.stdout, output.status.code()) == (b"3145728\n".to_vec(), Some(137)));
    Ok(())
}

fn the_doctor_answers_a_person_and_a_program(host: &Host) -> Result<()> {
    let text = forkd(host).arg("doctor").output()?;
    ensure!(text.status.success(), "{}", String::from_utf8_lossy(&text.stdout));
    let json = forkd(host).args(["doctor", "--json"]).output()?;
    let report: serde_json::Value = serde_json::from_slice(&json.stdout)?;
    let kvm = report["checks"].as_array().context("checks")?.iter().find(|check| check["name"] == "kvm");
    let verdict = kvm.context("a check of kvm")?["verdict"].as_str().context("its verdict")?;
    ensure!((verdict == "pass") == host.has_kvm(), "{verdict}");
    Ok(())
}

fn the_store_is_looked_after(host: &Host) -> Result<()> {
    for words in [&["gc"][..], &["verify", "--quiet"], &["tree"], &["tree", "--json"], &["images"]] {
        let output = forkd(host).args(words).output()?;
        ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        ensure!(!output.stdout.is_empty(), "{words:?} said nothing");
    }
    for verb in ["snapshot-info", "rmi", "verify"] {
        let output = forkd(host).args([verb, "nobody-made-this"]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1) && said.contains("there is no snapshot"), "{verb}: {said}");
    }
    let output = forkd(host).args(["rmi", "--cascade", "--force", "x"]).output()?;
    ensure!(output.status.code() == Some(2));
    Ok(())
}

fn bad_words_are_usage_errors(host: &Host) -> Result<()> {
    for words in [&["run"][..], &["run", "--vcpus", "0", "--", "true"], &["dance"], &["run", "--net=maybe", "x"]] {
        let output = forkd(host).args(words).output()?;
        ensure!(output.status.code() == Some(2), "{words:?}: {:?}", output.status);
        ensure!(!output.stderr.is_empty(), "{words:?} said nothing");
    }
    Ok(())
}
