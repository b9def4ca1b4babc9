//! `forkd recipe`, `from-image` and `quickstart` as a user has them before him.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Test;
use crate::host::Host;

pub(crate) const TESTS: &[Test] = &[
    ("recipe_verbs::recipes_are_begun_checked_and_listed", recipes_are_begun_checked_and_listed),
    ("recipe_verbs::a_recipe_with_everything_becomes_a_snapshot", a_recipe_with_everything_becomes_a_snapshot),
    ("recipe_verbs::quickstart_forks_and_leaves_the_snapshot", quickstart_forks_and_leaves_the_snapshot),
];

/// Of which the Debian below is in the cache already: the same packages as those of the recipe `debian`.
const EVERYTHING: &str = r#"description = "Everything at once"
[base]
debian = "bookworm"
packages = ["iproute2", "procps"]
[[copy]]
from = "server.pl"
to = "/opt/server/server.pl"
mode = "0750"
owner = "1234"
[[copy]]
from = "data"
to = "/srv/data"
[build]
run = ["useradd --uid 1234 web && ls -ln /opt/server/server.pl > /srv/seen", "echo $GREETING >> /srv/seen"]
[exec]
user = "web"
workdir = "/srv"
env = { GREETING = "hello" }
[warm]
command = "echo $(id -un) > /tmp/warmed"
start = "exec perl /opt/server/server.pl"
ready = { tcp = 8080 }
timeout_secs = 90
[network]
ports = [8080]
[disk]
free = "64M"
[size]
memory = "256M"
"#;
const SERVER: &str = r#"use IO::Socket::INET;
my $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 8080, Listen => 9, ReuseAddr => 1) or die;
while (my $c = $s->accept) { print $c "from $< in $ENV{PWD}\n"; close $c }
"#;

/// Ended after five minutes: an emulated host that hangs must not hang the tests.
fn forkd(host: &Host, words: &[&str]) -> Result<Output> {
    let mut command = Command::new("timeout");
    Ok(command.arg("300").arg(&host.forkd).args(words).stdin(Stdio::null()).output()?)
}

/// What a command that must succeed prints.
pub(crate) fn said(host: &Host, words: &[&str]) -> Result<String> {
    let output = forkd(host, words)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "forkd {words:?} ended with {}: {stderr}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

pub(crate) fn json(host: &Host, words: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&said(host, words)?)?)
}

/// What a command says that must fail.
fn refused(host: &Host, words: &[&str]) -> Result<String> {
    let output = forkd(host, words)?;
    ensure!(output.status.code() == Some(1), "forkd {words:?} ended with {}", output.status);
    Ok(String::from_utf8(output.stderr)?)
}

fn recipes_are_begun_checked_and_listed(host: &Host) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let text = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let listed = said(host, &["recipe", "list"])?;
    ensure!(listed.starts_with("NAME") && listed.contains("python-numpy"), "{listed}");
    let listed = json(host, &["recipe", "list", "--json"])?;
    ensure!(listed.as_array().is_some_and(|all| all.iter().any(|one| one["interpreter"] == "python3")), "{listed}");
    ensure!(said(host, &["recipe", "init", &text("mine")])? == text("mine/recipe.toml"));
    ensure!(said(host, &["recipe", "check", &text("mine")])?.starts_with("✓ mine: "));
    ensure!(refused(host, &["recipe", "init", &text("mine")])?.contains("is there already"));
    said(host, &["recipe", "init", &text("copy"), "--from", "python-numpy"])?;
    let checked = json(host, &["recipe", "check", &text("copy"), "debian", "--json"])?;
    ensure!(checked[0]["valid"] == true && checked[1]["says"]["name"] == "debian", "{checked}");
    fs::write(dir.path().join("mine/recipe.toml"), "description = \"d\"\n[base]\ndebian = \"../x\"\n")?;
    let wrong = refused(host, &["recipe", "check", &text("mine")])?;
    ensure!(wrong.contains("line 3") && wrong.contains("is not a Debian release"), "{wrong}");
    fs::write(dir.path().join("mine/recipe.toml"), EVERYTHING)?;
    let missing = refused(host, &["recipe", "check", &text("mine")])?;
    ensure!(missing.contains("mine/server.pl"), "{missing}");
    let schema: Value = serde_json::from_str(&said(host, &["recipe", "schema"])?)?;
    ensure!(schema["properties"]["base"].is_object(), "{schema}");
    a_directory_becomes_a_disk(host, dir.path())
}

/// Without a VM and without a tool.
fn a_directory_becomes_a_disk(host: &Host, dir: &Path) -> Result<()> {
    let text = |name: &str| dir.join(name).to_string_lossy().into_owned();
    fs::create_dir_all(dir.join("tree/etc"))?;
    fs::write(dir.join("tree/etc/motd"), "from the tree")?;
    fs::write(dir.join("extra"), "from beside")?;
    let recipe = "description = \"d\"\n[base]\nimage = \"dir:tree\"\n[[copy]]\nfrom = \"extra\"\nto = \"/etc/extra\"\n";
    fs::write(dir.join("plain.toml"), recipe)?;
    let built = json(host, &["recipe", "build", &text("plain.toml"), "--json"])?;
    ensure!(built["place"] == "local" && built["steps"] == 0, "{built}");
    let disk = text("disk.ext4");
    ensure!(said(host, &["parent", "build", &text("plain.toml"), "-o", &disk, "--size-mib", "64"])? == disk);
    ensure!(fs::metadata(&disk)?.len() == 64 << 20);
    for path in [built["path"].as_str().context("a path")?, &disk] {
        let shown = Command::new("/sbin/debugfs").args(["-R", "cat /etc/extra"]).arg(path).output()?;
        ensure!(shown.stdout == b"from beside", "{path}: {shown:?}");
    }
    let none = refused(host, &["from-image", &format!("dir:{}", text("tree")), "--tag", "t", "--extra", "jq"])?;
    ensure!(none.contains("not made of Debian packages"), "{none}");
    Ok(())
}

fn a_recipe_with_everything_becomes_a_snapshot(host: &Host) -> Result<()> {
    const TAG: &str = "e2e-everything";
    let dir = tempfile::tempdir()?;
    let mine = dir.path().join("everything");
    fs::create_dir_all(mine.join("data/sub"))?;
    fs::write(mine.join("recipe.toml"), EVERYTHING)?;
    fs::write(mine.join("server.pl"), SERVER)?;
    fs::write(mine.join("data/sub/file"), "beside")?;
    let recipe = mine.to_string_lossy().into_owned();
    said(host, &["snapshot", "--recipe", &recipe, "--tag", TAG, "--force"])?;
    let images = json(host, &["images", "--json"])?;
    let info = images.as_array().into_iter().flatten().find(|one| one["tag"] == TAG).context("it is listed")?;
    ensure!(info["recipe"] == "everything" && info["ports"][0] == 8080, "{info}");
    let script = "id -un; pwd; echo $GREETING; cat seen; cat data/sub/file; echo; cat /tmp/warmed; \
                  perl -MIO::Socket::INET -e '$c = IO::Socket::INET->new(\"127.0.0.1:8080\"); print <$c>'";
    let shown = said(host, &["run", "--tag", TAG, "--", "sh", "-c", script])?;
    let lines: Vec<_> = shown.lines().collect();
    ensure!(lines[..3] == ["web", "/srv", "hello"], "{shown}");
    ensure!(lines[3].starts_with("-rwxr-x--- 1 1234 1234 "), "{shown}");
    ensure!(lines[4..] == ["hello", "beside", "web", "from 1234 in /srv"], "{shown}");
    // What was built is found again, and a step that fails leaves what there was.
    let built = json(host, &["recipe", "build", &recipe, "--json"])?;
    ensure!(built["steps"] == 2 && json(host, &["recipe", "build", &recipe, "--json"])? == built, "{built}");
    fs::write(mine.join("recipe.toml"), EVERYTHING.replace("useradd --uid 1234 web", "echo why it failed; exit 3"))?;
    let failed = refused(host, &["snapshot", "--recipe", &recipe, "--tag", "e2e-none"])?;
    ensure!(failed.contains("step 1 of 2") && failed.contains("exit code 3"), "{failed}");
    ensure!(failed.contains("why it failed"), "{failed}");
    let images = json(host, &["images", "--json"])?;
    ensure!(!images.to_string().contains("e2e-none"), "something is left: {images}");
    said(host, &["rmi", TAG]).map(drop)
}

fn quickstart_forks_and_leaves_the_snapshot(host: &Host) -> Result<()> {
    // Of a try that failed.
    if json(host, &["images", "--json"])?.to_string().contains("\"quickstart\"") {
        said(host, &["rmi", "quickstart"])?;
    }
    let first = json(host, &["quickstart", "--recipe", "debian", "-n", "2", "-y", "--json"])?;
    ensure!(first["right"] == 2 && first["n"] == 2 && first["snapshot"]["was_there"] == false, "{first}");
    ensure!(first["inside"]["vcpus"] == 1 && first["times"]["booted_ms"].as_f64() > Some(0.0), "{first}");
    let alive = json(host, &["ls", "--json"])?;
    ensure!(!alive.to_string().contains("quickstart"), "the forks are ended: {alive}");
    let taken = refused(host, &["quickstart", "--recipe", "python-numpy", "-y"])?;
    ensure!(taken.contains("forkd rmi quickstart"), "{taken}");
    let again = said(host, &["quickstart", "-n", "1", "--rm"])?;
    ensure!(again.contains("is there already") && again.contains("1 of 1 answered right"), "{again}");
    ensure!(again.contains("forkd rmi quickstart"), "what was there before stays: {again}");
    said(host, &["rmi", "quickstart"]).map(drop)
}
