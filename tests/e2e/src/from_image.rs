//! Container images from where people have them to a fork: a registry, an archive, and one in which there is no shell.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::Test;
use crate::host::Host;
use crate::recipe_verbs::{json, said};
use crate::world::wait_until;

pub(crate) const TESTS: &[Test] = &[
    ("from_image::an_image_of_a_registry_is_forked", an_image_of_a_registry_is_forked),
    ("from_image::an_image_without_a_shell_is_started", an_image_without_a_shell_is_started),
    ("from_image::extra_packages_are_installed_in_a_vm", extra_packages_are_installed_in_a_vm),
    ("from_image::a_disk_is_built_without_root", a_disk_is_built_without_root),
];

const PATIENCE: Duration = Duration::from_secs(60);
/// Steps over an image of a registry, in a VM.
const RECIPE: &str = "description = \"d\"\n[build]\nrun = [\"echo $ONE > /built\"]\n[disk]\nfree = \"32M\"\n\
                      [size]\nmemory = \"128M\"\n[base]\n";

/// The registry that `make setup` unpacked, with a storage and a port of its own.
struct Registry {
    child: Child,
    port: u16,
}

impl Registry {
    fn start(work: &Path) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = work.join("registry.yml");
        let storage = work.join("storage");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http: {{addr: '127.0.0.1:{port}', secret: test}}\n",
            storage.display()
        );
        fs::write(&config, text)?;
        let tests = std::env::current_exe()?;
        let target = tests.ancestors().nth(3).context("it lies in cargo's directory")?;
        let mut program = Command::new(target.join("tools/usr/bin/docker-registry"));
        program.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let registry = Self { child: program.spawn().context("docker-registry; `make setup` downloads it")?, port };
        wait_until("the registry listens", PATIENCE, || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(registry)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It is gone already when either fails.
        drop((self.child.kill(), self.child.wait()));
    }
}

/// What `docker save` would write of a tree that is run like this.
fn archive(tree: &Path, run: &Value, out: &Path) -> Result<()> {
    let layer = out.with_extension("layer");
    ran(Command::new("tar").args(["--owner=0", "--group=0", "-C"]).arg(tree).arg("-cf").arg(&layer).arg("."))?;
    saved(&[fs::read(&layer)?], run, out)
}

/// What it would write of layers.
pub(crate) fn saved(layers: &[Vec<u8>], run: &Value, out: &Path) -> Result<()> {
    let dir = out.with_extension("d");
    fs::create_dir_all(&dir)?;
    let hex = |layer: &Vec<u8>| Sha256::digest(layer).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let ids: Vec<_> = layers.iter().map(|layer| format!("sha256:{}", hex(layer))).collect();
    let names: Vec<_> = (0..layers.len()).map(|number| format!("{number}.tar")).collect();
    for (name, layer) in names.iter().zip(layers) {
        fs::write(dir.join(name), layer)?;
    }
    let rootfs = json!({ "type": "layers", "diff_ids": ids });
    let config = json!({ "architecture": "amd64", "os": "linux", "config": run, "rootfs": rootfs });
    fs::write(dir.join("config.json"), config.to_string())?;
    let manifest = json!([{ "Config": "config.json", "RepoTags": ["tiny:1"], "Layers": names }]);
    fs::write(dir.join("manifest.json"), manifest.to_string())?;
    let mut tar = Command::new("tar");
    ran(tar.arg("-C").arg(&dir).arg("-cf").arg(out).args(["manifest.json", "config.json"]).args(&names))
}

pub(crate) fn ran(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The sandbox that was made of it; ended by `rmi --force` and the end of the daemon at the latest.
fn fork(host: &Host, tag: &str) -> Result<String> {
    let made = json(host, &["spawn", "--tag", tag, "--json"])?;
    Ok(made[0]["id"].as_str().context("an id")?.to_owned())
}

/// A shell and more in it, and a file that is longer than what is compared whenever it is used.
fn tree_with_a_shell(host: &Host, work: &Path) -> Result<PathBuf> {
    let tree = tree_of(&host.artifacts.tiny, work)?;
    fs::write(tree.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:1234:1234::/home/web:/bin/sh\n")?;
    fs::write(tree.join("noise"), (0u32..180_000).flat_map(|n| Sha256::digest(n.to_le_bytes())).collect::<Vec<_>>())?;
    Ok(tree)
}

/// What is on a disk, as files here.
fn tree_of(disk: &Path, work: &Path) -> Result<PathBuf> {
    let tree = work.join("tree");
    fs::create_dir_all(&tree)?;
    let dump = format!("rdump / {}", tree.display());
    ran(Command::new("/sbin/debugfs").arg("-R").arg(dump).arg(disk))?;
    fs::set_permissions(tree.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    Ok(tree)
}

/// The image's own apt installs what was downloaded here, with all it needs, in a VM that has no network.
fn extra_packages_are_installed_in_a_vm(host: &Host) -> Result<()> {
    let work = tempfile::tempdir()?;
    let text = |name: &str| work.path().join(name).display().to_string();
    archive(&tree_of(&host.artifacts.debian, work.path())?, &json!({}), Path::new(&text("debian.tar")))?;
    // A step that runs after it in the same VM shows that it works.
    let recipe = "description = \"d\"\n[base]\nimage = \"docker-archive:debian.tar\"\n[disk]\nfree = \"64M\"\n\
                  [build]\nrun = [\"echo '{\\\"word\\\": 42}' | jq .word > /answer\"]\n";
    fs::write(text("mine.toml"), recipe)?;
    said(host, &["parent", "build", &text("mine.toml"), "--extra", "jq", "-o", &text("disk")])?;
    ensure!(cat(&text("disk"), "/answer")? == "42\n");
    let status = cat(&text("disk"), "/var/lib/dpkg/status")?;
    ensure!(
        ["jq", "libjq1"]
            .iter()
            .all(|name| status.contains(&format!("\nPackage: {name}\nStatus: install ok installed\n")))
    );
    let left =
        Command::new("/sbin/debugfs").args(["-R", "stat /var/cache/forkd/packages"]).arg(text("disk")).output()?;
    ensure!(String::from_utf8_lossy(&left.stderr).contains("not found"), "the files stayed: {left:?}");
    Ok(())
}

fn an_image_of_a_registry_is_forked(host: &Host) -> Result<()> {
    const TAG: &str = "e2e-of-a-registry";
    let work = tempfile::tempdir()?;
    let text = |name: &str| work.path().join(name).display().to_string();
    let run = json!({
        "Env": ["ONE=1", "TWO=two words"], "User": "web", "WorkingDir": "/srv/not/there",
        "Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo $TWO of $ONE in $PWD"],
    });
    archive(&tree_with_a_shell(host, work.path())?, &run, Path::new(&text("tiny.tar")))?;
    let registry = Registry::start(work.path())?;
    let image = format!("localhost:{}/team/tiny:1", registry.port);
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]);
    ran(skopeo.arg(format!("docker-archive:{}", text("tiny.tar"))).arg(format!("docker://{image}")))?;
    fs::write(text("mine.toml"), format!("{RECIPE}image = \"{image}\"\n"))?;
    said(host, &["from-image", &text("mine.toml"), "--tag", TAG, "--force", "--warm", "echo warm > /tmp/warm"])?;
    let id = fork(host, TAG)?;
    ensure!(said(host, &["exec", &id])? == "two words of 1 in /srv/not/there", "neither ENTRYPOINT nor CMD");
    let shown = said(host, &["exec", &id, "--", "sh", "-c", "cat /built /tmp/warm; echo $HOME $PWD"])?;
    ensure!(shown == "1\nwarm\n/home/web /srv/not/there", "{shown}");
    said(host, &["kill", &id])?;
    said(host, &["rmi", TAG])?;
    // The disk that the step left, and one of the archive, which has none of it.
    said(host, &["parent", "build", &text("mine.toml"), "-o", &text("built.ext4")])?;
    let archive = format!("docker-archive:{}", text("tiny.tar"));
    said(host, &["parent", "build", &archive, "-o", &text("plain.ext4")])?;
    // One command in a VM of it, as published command lines ask for it.
    let run = ["run", "--quiet", "--image", &archive, "--mem-size-mib", "128", "--", "sh", "-c", "echo $TWO"];
    ensure!(said(host, &run)? == "two words");
    ensure!(cat(&text("built.ext4"), "/built")? == "1\n" && cat(&text("plain.ext4"), "/built")?.is_empty());
    mends_what_was_damaged(host, &image, &text("again.ext4"))?;
    ensure!(fs::read(text("again.ext4"))? == fs::read(text("plain.ext4"))?, "the same image gives the same disk");
    Ok(())
}

pub(crate) fn cat(disk: &str, path: &str) -> Result<String> {
    let shown = Command::new("/sbin/debugfs").arg("-R").arg(format!("cat {path}")).arg(disk).output()?;
    Ok(String::from_utf8(shown.stdout)?)
}

/// A layer that was pulled before and has changed since is fetched anew when a disk is made of it.
fn mends_what_was_damaged(host: &Host, image: &str, out: &str) -> Result<()> {
    let layers = fs::read_dir(host.dirs.cache.join("layers-v1"))?.map(|entry| Ok(entry?.path()));
    let mut layers = layers.collect::<Result<Vec<_>>>()?;
    layers.sort_by_key(|path| path.metadata().and_then(|meta| meta.modified()).ok());
    let long = |path: &&PathBuf| path.metadata().is_ok_and(|meta| meta.len() > 4 << 20);
    let layer = layers.iter().rfind(long).context("a layer in the cache")?;
    File::options().write(true).open(layer)?.write_all_at(b"damage", 1 << 20)?;
    said(host, &["parent", "build", image, "-o", out]).map(drop)
}

fn an_image_without_a_shell_is_started(host: &Host) -> Result<()> {
    const TAG: &str = "e2e-without-a-shell";
    let work = tempfile::tempdir()?;
    let (tree, out) = (work.path().join("tree"), work.path().join("bare.tar"));
    fs::create_dir_all(tree.join("root"))?;
    fs::copy(&host.torture_guest, tree.join("serve it"))?;
    fs::copy(&host.list_tree, tree.join("list"))?;
    archive(&tree, &json!({ "Entrypoint": ["/serve it"], "Cmd": ["/root/how it goes"] }), &out)?;
    let source = format!("docker-archive:{}", out.display());
    said(host, &["from-image", &source, "--tag", TAG, "--force", "--start", "--memory", "128M"])?;
    let id = fork(host, TAG)?;
    let listed = || said(host, &["exec", &id, "--", "/list", "/root"]);
    wait_until("it runs in the fork", PATIENCE, || listed().is_ok_and(|listed| listed.contains("how it goes")))?;
    said(host, &["kill", &id])?;
    said(host, &["rmi", TAG]).map(drop)
}

/// As somebody to whom nothing belongs but a directory.
fn a_disk_is_built_without_root(host: &Host) -> Result<()> {
    const NOBODY: u32 = 65_534;
    let work = tempfile::tempdir()?;
    let at = |name: &str| work.path().join(name);
    fs::create_dir_all(at("tree"))?;
    fs::create_dir(at("home"))?;
    fs::write(at("tree/file"), "text")?;
    // Where it was built others need not be let in.
    fs::copy(&host.forkd, at("forkd"))?;
    ran(Command::new("tar").arg("-C").arg(at("tree")).arg("-cf").arg(at("tree.tar")).arg("."))?;
    saved(&[fs::read(at("tree.tar"))?], &json!({}), &at("saved.tar"))?;
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        ran(Command::new("chown").arg("-R").arg(format!("{NOBODY}:{NOBODY}")).arg(work.path()))?;
    }
    for source in ["dir:tree", "tar:tree.tar", "docker-archive:saved.tar"] {
        let mut command = Command::new(if is_root { "setpriv" } else { "env" });
        if is_root {
            command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".into()]);
        }
        command.arg(at("forkd")).args(["parent", "build", source, "-o", "disk.ext4", "--quiet"]);
        ran(command.env("FORKD_HOME", at("home")).current_dir(work.path()))?;
        ensure!(cat(&at("disk.ext4").display().to_string(), "/file")? == "text", "{source}");
    }
    Ok(())
}
