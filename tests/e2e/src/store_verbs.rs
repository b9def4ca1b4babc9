//! The verbs on the store, over a snapshot of nothing: what they print, and what crosses between them and the daemon.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bench::home::{Home, TAG, Vms};
use serde_json::{Value, json};

use crate::Test;
use crate::host::Host;

pub(crate) const TESTS: &[Test] = &[("store_verbs::snapshots_are_looked_after", snapshots_are_looked_after)];

fn snapshots_are_looked_after(host: &Host) -> Result<()> {
    let home = Home::new(&std::env::temp_dir(), Vms::StandIns)?;
    let command = |words: &[&str]| {
        let mut command = host.forkd();
        command.args(words).env("FORKD_URL", &home.url);
        command
    };
    let forkd = |words: &[&str]| -> Result<String> {
        let output = command(words).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "forkd {words:?} ended with {}: {stderr}", output.status);
        Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
    };
    let json = |words: &[&str]| -> Result<Value> { Ok(serde_json::from_str(&forkd(words)?)?) };
    let images = forkd(&["images"])?;
    ensure!(images.starts_with("TAG ") && images.contains("\n1 snapshot, "), "{images}");
    let listed = json(&["images", "--json"])?;
    ensure!(listed[0]["tag"] == TAG && listed[0]["id"].is_string() && listed[0]["vcpus"].is_u64(), "{listed}");
    ensure!(json(&["tree", "--json"])?[0]["depth"] == 0);
    ensure!(forkd(&["tree"])?.lines().nth(1).is_some_and(|line| line.starts_with(TAG)));
    ensure!(json(&["snapshot-info", TAG, "--json"])?["chain_depth"] == 0);
    let compacted = forkd(&["snapshot-compact", "--from", TAG, "--to", "flat"])?;
    ensure!(compacted.starts_with("✓ snapshot flat: one layer of memory instead of 1, "), "{compacted}");
    ensure!(json(&["snapshot-info", "flat", "--json"])?["branched_from"] == format!("compact:{TAG}"));
    ensure!(forkd(&["verify"])?.starts_with("✓ 2 snapshots, "));
    ensure!(json(&["verify", "--json"])?["findings"] == json!([]));
    ensure!(json(&["snapshot-compact", "--from", TAG, "--to", "fourth", "--json"])?["tag"] == "fourth");
    packs_cross(&forkd, &command)?;
    ensure!(forkd(&["gc"])? == "nothing to remove");
    ensure!(json(&["gc", "--json"])?["bytes"] == 0);
    ensure!(forkd(&["rmi", TAG, "flat", "again"])?.lines().count() == 3);
    ensure!(json(&["rmi", "third", "fourth", "--json"])? == json!(["third", "fourth"]));
    ensure!(json(&["images", "--json"])? == Value::Array(Vec::new()));
    let unknown = command(&["snapshot-info", TAG]).output()?;
    let stderr = String::from_utf8_lossy(&unknown.stderr);
    ensure!(unknown.status.code() == Some(1) && stderr.contains("there is no snapshot"), "{stderr}");
    Ok(())
}

/// By a file, and by a pipe.
fn packs_cross(forkd: &impl Fn(&[&str]) -> Result<String>, command: &impl Fn(&[&str]) -> Command) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let text = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let told = forkd(&["pack", "--tag", TAG, "-o", &text("pack"), "--description", "a word"])?;
    ensure!(told.starts_with(&format!("✓ {}: ", text("pack"))), "{told}");
    ensure!(std::fs::read_dir(dir.path())?.count() == 1, "nothing is left beside it");
    ensure!(forkd(&["unpack", &text("pack"), "--tag", "again"])? == "✓ again");
    let told: Value = serde_json::from_str(&forkd(&["unpack", &text("pack"), "--json"])?)?;
    ensure!(told == json!([{ "tag": TAG, "is_new": false }]), "{told}");
    let told: Value = serde_json::from_str(&forkd(&["pack", "--tag", TAG, "-o", &text("pack"), "--json"])?)?;
    let length = std::fs::metadata(text("pack"))?.len();
    ensure!(told == json!({ "tag": TAG, "path": text("pack"), "bytes": length }), "{told}");
    let packed = command(&["pack", "--tag", TAG, "-o", "-"]).output()?;
    let mut unpacking = command(&["unpack", "-", "--tag", "third"]);
    let mut unpacking = unpacking.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    unpacking.stdin.take().context("a pipe")?.write_all(&packed.stdout)?;
    let output = unpacking.wait_with_output()?;
    ensure!(output.status.success() && output.stdout == "✓ third\n".as_bytes(), "{output:?}");
    std::fs::write(text("bad"), b"no pack")?;
    let refused = command(&["unpack", &text("bad")]).output()?;
    let stderr = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(1) && stderr.contains("this is not a pack"), "{stderr}");
    let missing = command(&["pack", "--tag", "nobody-made-this", "-o", &text("none")]).output()?;
    ensure!(missing.status.code() == Some(1) && !dir.path().join("none").exists(), "{missing:?}");
    Ok(())
}
