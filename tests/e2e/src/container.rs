//! A container image in a VM: its files are what its layers say, and its commands run as it says.

mod kinds;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use engine::{BootSpec, Vm};
use oci::{DiskSize, Limits, Platform};
use proto::guest::{ExecRequest, FileInfo, FileKind, StatFile};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use types::progress::Silent;

use crate::Test;
use crate::host::{Host, Sh, argv};
use crate::tar::Tar;

pub(crate) const TESTS: &[Test] = &[
    ("container::an_image_is_in_the_vm_as_it_was", an_image_is_in_the_vm_as_it_was),
    ("container::a_directory_is_in_the_vm_as_it_was", a_directory_is_in_the_vm_as_it_was),
    ("container::an_archive_is_in_the_vm_as_it_was", an_archive_is_in_the_vm_as_it_was),
];

const BYTES: u64 = 64 << 20;
/// Below it is a file of every kind.
const KINDS: &str = "kinds";
/// What says so in the guest.
const LISTER: &str = "bin/list-tree";

/// The tiny image's files, a file of every kind, and what tells them.
struct Tree {
    work: tempfile::TempDir,
    root: PathBuf,
    /// What there is, as it was made.
    listed: String,
}

impl Tree {
    fn make(host: &Host, nodes: kinds::Nodes) -> Result<Self> {
        fs::create_dir_all(&host.dirs.cache)?;
        let work = tempfile::tempdir_in(&host.dirs.cache)?;
        let root = work.path().join("tree");
        fs::create_dir_all(&root)?;
        let dump = format!("rdump / {}", root.display());
        run(Command::new("/sbin/debugfs").arg("-R").arg(dump).arg(&host.artifacts.tiny))?;
        fs::copy(&host.list_tree, root.join(LISTER))?;
        kinds::make(&root.join(KINDS), nodes)?;
        let listed = String::from_utf8(run(Command::new(&host.list_tree).arg(root.join(KINDS)))?)?;
        Ok(Self { work, root, listed })
    }

    /// All of it, by GNU tar.
    fn pack(&self, archive: &Path) -> Result<()> {
        let mut tar = Command::new("tar");
        tar.args(["--format=posix", "--numeric-owner", "--sparse", "--xattrs", "--xattrs-include=*", "-C"]);
        run(tar.arg(&self.root).arg("-cf").arg(archive).arg(".")).map(drop)
    }

    fn boot(&self, source: &str, host: &Host) -> Result<Vm> {
        let disk = self.work.path().join("disk");
        let container = oci::Image::open(&source.parse()?, &Platform::default())?;
        container.write(&File::create(&disk)?, DiskSize::Bytes(BYTES), Limits::default(), &Silent)?;
        host.boot(BootSpec { image: disk, ..host.spec() })
    }
}

/// The guest has the files that were made, to the last attribute.
fn compare(vm: &Vm, expected: &str) -> Result<()> {
    let output = vm.output(&argv(&[&format!("/{LISTER}"), &format!("/{KINDS}")]), &[])?;
    ensure!(output.status.shell_code() == 0, "{}", String::from_utf8_lossy(&output.stderr));
    let found = String::from_utf8(output.stdout)?;
    ensure!(expected.lines().count() > 15, "there is little in it: {expected}");
    for (expected, found) in expected.lines().zip(found.lines()) {
        ensure!(expected == found, "made: {expected}\nfound: {found}");
    }
    ensure!(expected == found, "there are more or fewer of them:\n{found}");
    Ok(())
}

fn a_directory_is_in_the_vm_as_it_was(host: &Host) -> Result<()> {
    let tree = Tree::make(host, kinds::Nodes::All)?;
    compare(&tree.boot(&format!("dir:{}", tree.root.display()), host)?, &tree.listed)
}

fn an_archive_is_in_the_vm_as_it_was(host: &Host) -> Result<()> {
    let tree = Tree::make(host, kinds::Nodes::Archived)?;
    let archive = tree.work.path().join("tree.tar");
    tree.pack(&archive)?;
    compare(&tree.boot(&format!("tar:{}", archive.display()), host)?, &tree.listed)
}

/// The tree in a layer, and odd files in another over it.
fn an_image_is_in_the_vm_as_it_was(host: &Host) -> Result<()> {
    let tree = Tree::make(host, kinds::Nodes::Archived)?;
    fs::create_dir(tree.root.join("odd"))?;
    fs::write(tree.root.join("odd/hidden"), "by a layer below")?;
    let archive = save(&tree)?;
    let vm = tree.boot(&format!("docker-archive:{}", archive.display()), host)?;
    // In a layer that name takes something away, so it is none of a file.
    let whiteout = |line: &&str| !line.starts_with("\".wh.");
    let expected = tree.listed.lines().filter(whiteout).fold(String::new(), |all, line| all + line + "\n");
    compare(&vm, &expected)?;
    ensure!(vm.sh("echo $IMAGE_SAYS; pwd")? == "tiny\n/root", "neither ENV nor WORKDIR");
    let own = vm.output(&ExecRequest::default(), &[])?;
    ensure!(own.stdout == b"from the image\n", "neither ENTRYPOINT nor CMD: {own:?}");
    let file = stat(&vm, "/odd/file")?;
    let told = (file.kind, file.size, file.mode & 0o7777, file.uid, file.gid, file.mtime_unix_ms);
    ensure!(told == (FileKind::File, 4, 0o4751, 70_000, 3, 1_500_000_000_250), "{file:?}");
    ensure!(vm.sh("cat /odd/file; [ /odd/file -ef /odd/again ] && echo -n ' twice'")? == "text twice");
    let sparse = stat(&vm, "/odd/sparse")?;
    ensure!(sparse.size == 1 << 40, "{sparse:?}");
    ensure!(vm.sh("head -c 5 /odd/sparse")? == "begin");
    let link = stat(&vm, "/odd/link")?;
    ensure!(link.kind == FileKind::Symlink && link.target.as_deref() == Some(&*"x/".repeat(100)), "{link:?}");
    vm.sh("[ -p /odd/fifo ] && [ -c /odd/null ] && echo gone > /odd/null && [ -f \"/odd/new\nline\" ] && [ ! -e /odd/hidden ]")?;
    // The kernel writes to it, reads it back and has nothing to complain of.
    vm.sh(
        "echo written > /odd/file && sync && echo 3 > /proc/sys/vm/drop_caches && [ \"$(cat /odd/file)\" = written ]",
    )?;
    let mounts = vm.sh("cat /proc/mounts")?;
    ensure!(mounts.lines().any(|line| line.contains(" / ext4 rw")), "the root is not writable: {mounts}");
    Ok(())
}

fn stat(vm: &Vm, path: &str) -> Result<FileInfo> {
    let request = StatFile { path: path.parse()?, user: None };
    vm.connect()?.stat_file(&request).with_context(|| path.to_owned())
}

/// The tree as `docker save` would hand it over, with a layer of odd files over it.
fn save(tree: &Tree) -> Result<PathBuf> {
    let dir = tree.work.path().join("save");
    fs::create_dir(&dir)?;
    tree.pack(&dir.join("0.tar"))?;
    fs::write(dir.join("1.tar"), odd())?;
    let digest = |name: &str| -> Result<String> {
        let hex: String = Sha256::digest(fs::read(dir.join(name))?).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("sha256:{hex}"))
    };
    let config = json!({
        "architecture": Platform::default().to_string().trim_start_matches("linux/"),
        "os": "linux",
        "config": {
            "Env": ["IMAGE_SAYS=tiny"],
            "WorkingDir": "/root",
            "Entrypoint": ["sh", "-c"],
            "Cmd": ["echo from the image"],
        },
        "rootfs": { "type": "layers", "diff_ids": [digest("0.tar")?, digest("1.tar")?] },
    });
    fs::write(dir.join("config.json"), config.to_string())?;
    let manifest = json!([{ "Config": "config.json", "RepoTags": ["tiny:latest"], "Layers": ["0.tar", "1.tar"] }]);
    fs::write(dir.join("manifest.json"), manifest.to_string())?;
    let archive = tree.work.path().join("save.tar");
    run(Command::new("tar").arg("-C").arg(&dir).arg("-cf").arg(&archive).arg("."))?;
    Ok(archive)
}

/// Files that no file system here has to be able to have.
fn odd() -> Vec<u8> {
    Tar::default()
        .add(b'5', "odd/", "", b"")
        .pax(&[("mtime", "1500000000.25".into())])
        .file("odd/file", "text")
        .add(b'1', "odd/again", "odd/file", b"")
        .add(b'K', "long", "", "x/".repeat(100).as_bytes())
        .add(b'2', "odd/link", "", b"")
        .add(b'3', "odd/null", "", b"")
        .add(b'6', "odd/fifo", "", b"")
        .file("odd/new\nline", "")
        .file("odd/.wh.hidden", "")
        .sparse("odd/sparse", 1 << 40, b"begin")
        .end()
}

/// What a command that must succeed prints.
fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
