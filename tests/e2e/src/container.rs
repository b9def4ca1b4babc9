//! A container image in a VM: its files are what its layers say, and its commands run as it says.

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
use crate::host::{Host, Sh};

pub(crate) const TESTS: &[Test] = &[("container::an_image_is_in_the_vm_as_it_was", an_image_is_in_the_vm_as_it_was)];

const BYTES: u64 = 32 << 20;

/// The tiny image's files in a layer, and odd ones in another over it.
fn an_image_is_in_the_vm_as_it_was(host: &Host) -> Result<()> {
    fs::create_dir_all(&host.dirs.cache)?;
    let work = tempfile::tempdir_in(&host.dirs.cache)?;
    let (tree, disk) = (work.path().join("tree"), work.path().join("disk"));
    fs::create_dir_all(&tree)?;
    run(Command::new("/sbin/debugfs").arg("-R").arg(format!("rdump / {}", tree.display())).arg(&host.artifacts.tiny))?;
    fs::create_dir(tree.join("odd"))?;
    fs::write(tree.join("odd/hidden"), "by a layer below")?;
    let archive = save(&tree, work.path())?;
    let container = oci::Image::open(&format!("docker-archive:{}", archive.display()).parse()?, &Platform::default())?;
    container.write(&File::create(&disk)?, DiskSize::Bytes(BYTES), Limits::default(), &Silent)?;
    let vm = host.boot(BootSpec { image: disk, ..host.spec() })?;
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
fn save(tree: &Path, work: &Path) -> Result<PathBuf> {
    let dir = work.join("save");
    fs::create_dir(&dir)?;
    run(Command::new("tar")
        .args(["--owner=0", "--group=0", "-C"])
        .arg(tree)
        .arg("-cf")
        .arg(dir.join("0.tar"))
        .arg("."))?;
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
    let archive = work.join("save.tar");
    run(Command::new("tar").arg("-C").arg(&dir).arg("-cf").arg(&archive).arg("."))?;
    Ok(archive)
}

/// Files of every kind, written byte by byte: no file system here has to be able to have them.
fn odd() -> Vec<u8> {
    let mut tar = Vec::new();
    let mut add = |kind: u8, path: &str, link: &str, data: &[u8]| {
        let mut block = [0; 512];
        let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, path);
        for (at, text) in
            [(100, "0004751"), (108, "0210560"), (116, "0000003"), (136, "00000000000"), (257, "ustar\x0000")]
        {
            put(at, text);
        }
        put(124, &format!("{:011o}", data.len()));
        put(157, link);
        put(329, "0000001");
        put(337, "0000003");
        block[156] = kind;
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        tar.extend(block);
        tar.extend(data);
        tar.resize(tar.len().next_multiple_of(512), 0);
    };
    add(b'5', "odd/", "", b"");
    add(b'x', "pax", "", b"23 mtime=1500000000.25\n");
    add(b'0', "odd/file", "", b"text");
    add(b'1', "odd/again", "odd/file", b"");
    add(b'K', "long", "", "x/".repeat(100).as_bytes());
    add(b'2', "odd/link", "", b"");
    add(b'3', "odd/null", "", b"");
    add(b'6', "odd/fifo", "", b"");
    add(b'0', "odd/new\nline", "", b"");
    add(b'0', "odd/.wh.hidden", "", b"");
    let map = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n30 GNU.sparse.name=odd/sparse\n37 GNU.sparse.realsize=1099511627776\n";
    add(b'x', "pax", "", map);
    let mut sparse = b"1\n0\n5\n".to_vec();
    sparse.resize(512, 0);
    sparse.extend(b"begin");
    add(b'0', "odd/x", "", &sparse);
    tar.resize(tar.len() + 1024, 0);
    tar
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
