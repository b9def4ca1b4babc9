//! Images that mean harm, given to the command that a user would give them to: nothing but the disk is written, and what
//! was too much is said.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};

use crate::Test;
use crate::from_image::saved;
use crate::host::Host;
use crate::tar::{Tar, header};

pub(crate) const TESTS: &[Test] = &[
    ("hostile::nothing_but_the_disk_is_written", nothing_but_the_disk_is_written),
    ("hostile::a_million_files_take_neither_memory_nor_time", a_million_files_take_neither_memory_nor_time),
];

/// What forkd may take for an image of as many files as it takes: about twice of what it does.
const MEMORY_KIB: u64 = 3 << 20;
const SECONDS: u64 = 150;
/// How many files an image may have, and in how many directories they are here, which count.
const MOST: u64 = 1 << 20;
const DIRECTORIES: u64 = 4096;

/// A file that nobody may touch: where, what it looks like, and what is in it.
type Around = (PathBuf, (u32, u32, u32, i64), Vec<u8>);

/// A directory in which all that is built lies, and files around it that nobody may touch.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Result<Self> {
        let site = Self { dir: tempfile::tempdir()? };
        for name in ["sentinel", "build/sentinel", "home/sentinel"] {
            let path = site.path(name);
            fs::create_dir_all(path.parent().context("a directory")?)?;
            fs::write(path, "untouched")?;
        }
        Ok(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `forkd parent build` with a home of its own, as a user who stands in the build directory.
    fn build(&self, host: &Host, source: &str) -> Result<Output> {
        let mut command = Command::new("sh");
        // Whoever takes more memory than this is refused it.
        command.arg("-c").arg(format!("ulimit -v {MEMORY_KIB}; exec timeout {SECONDS} \"$@\"")).arg("sh");
        command.arg(&host.forkd).args(["parent", "build", source, "-o", "disk", "--quiet"]);
        let command = command.env("FORKD_HOME", self.path("home")).current_dir(self.path("build"));
        Ok(command.stdin(Stdio::null()).output()?)
    }

    /// All that there is outside the home and is not ours to write, with what is in it.
    fn around(&self) -> Result<Vec<Around>> {
        let mut found = Vec::new();
        for dir in [self.dir.path().to_owned(), self.path("build")] {
            for entry in fs::read_dir(dir)? {
                let path = entry?.path();
                let meta = path.symlink_metadata()?;
                let is_ours = path.ends_with("disk") || path.extension().is_some_and(|end| end == "tar" || end == "d");
                let contents = if meta.is_file() && !is_ours { fs::read(&path)? } else { Vec::new() };
                // A directory's time is that of its files' coming and going.
                let changed = if meta.is_dir() { 0 } else { meta.ctime_nsec() };
                let look = (meta.mode(), meta.uid(), meta.gid(), changed);
                found.extend((!is_ours).then_some((path, look, contents)));
            }
        }
        found.sort();
        Ok(found)
    }
}

/// What is in it, and what is said of it; nothing when it is an image all the same.
fn cases(outside: &Path) -> Vec<(Tar, Option<&'static str>)> {
    let up = "../".repeat(20);
    let out = outside.display().to_string();
    let tar = Tar::default;
    vec![
        (tar().file(&format!("{up}{}", &out[1..]), "escaped"), Some("leads out of the image")),
        (tar().file("a/../../sentinel", "escaped"), Some("leads out of the image")),
        (tar().file(&out, "escaped"), None),
        (tar().add(b'2', "up", "..", b"").file("up/sentinel", "escaped"), None),
        (tar().add(b'2', "out", &out, b"").file("out", "escaped"), None),
        (tar().add(b'2', "root", "/", b"").file(&format!("root{out}"), "escaped"), None),
        (tar().add(b'1', "link", &format!("{up}{}", &out[1..]), b"").file("link", "escaped"), Some("leads out")),
        (tar().add(b'1', "link", &out, b""), Some("there is no such file")),
        (tar().add(b'3', "null", "", b"").add(b'4', "disk", "", b"").add(b'6', "fifo", "", b""), None),
        (tar().sparse("long", 1 << 40, b"begin"), None),
        (tar().sparse("longer", 1 << 50, b"begin"), Some("a file has at most")),
        (tar().add(b'2', "a", "b", b"").add(b'2', "b", "a", b"").file("a/x", ""), Some("too many symbolic links")),
        (tar().file(&"n/".repeat(49), "").pax(&[("path", "n".repeat(300))]).file("x", ""), Some("cannot be the path")),
    ]
}

/// The same of layers over each other, in which names can take others away.
fn layered_cases() -> Vec<(Vec<Tar>, Option<&'static str>)> {
    let tar = Tar::default;
    let below = || tar().file("d/below", "text");
    vec![
        (vec![below(), tar().file("d/.wh..", "")], Some("takes away what is not its to take")),
        (vec![below(), tar().file("d/.wh...", "")], Some("takes away what is not its to take")),
        (vec![below(), tar().file(".wh.", "")], Some("takes away what is not its to take")),
        (vec![below(), tar().file("../.wh.sentinel", "")], Some("leads out of the image")),
        (vec![below(), tar().add(b'2', "up", "..", b"").file("up/.wh.sentinel", "")], None),
        (vec![below(), tar().file(".wh.sentinel", "").file("d/.wh..wh..opq", "")], None),
    ]
}

fn nothing_but_the_disk_is_written(host: &Host) -> Result<()> {
    let site = Site::new()?;
    let before = site.around()?;
    let archive = site.path("image.tar");
    for (number, (tar, expected)) in cases(&site.path("sentinel")).into_iter().enumerate() {
        fs::write(&archive, tar.end())?;
        judged(host, &site, "tar", expected, &before).with_context(|| format!("case {number}"))?;
    }
    for (number, (layers, expected)) in layered_cases().into_iter().enumerate() {
        let layers: Vec<_> = layers.into_iter().map(Tar::end).collect();
        saved(&layers, &serde_json::json!({}), &archive)?;
        judged(host, &site, "docker-archive", expected, &before).with_context(|| format!("layers {number}"))?;
    }
    Ok(())
}

/// It is refused in these words, or becomes a disk; and nothing else is written.
fn judged(host: &Host, site: &Site, kind: &str, expected: Option<&str>, before: &[Around]) -> Result<()> {
    let built = site.build(host, &format!("{kind}:{}", site.path("image.tar").display()))?;
    let said = String::from_utf8_lossy(&built.stderr);
    match expected {
        Some(expected) => ensure!(
            built.status.code() == Some(1) && said.contains(expected) && !site.path("build/disk").exists(),
            "it was not refused with {expected:?}: {said}"
        ),
        None => {
            ensure!(built.status.success(), "{said}");
            fs::remove_file(site.path("build/disk"))?;
        }
    }
    ensure!(site.around()? == before, "it wrote elsewhere");
    ensure!(fs::read(site.path("home/sentinel"))? == b"untouched", "it wrote to the home");
    Ok(())
}

/// As many as an image may have; that one more is refused is tested where they are counted.
fn a_million_files_take_neither_memory_nor_time(host: &Host) -> Result<()> {
    let site = Site::new()?;
    let archive = site.path("image.tar");
    let mut gzip = Command::new("gzip");
    let mut gzip = gzip.arg("-1").stdin(Stdio::piped()).stdout(fs::File::create(&archive)?).spawn()?;
    let mut out = std::io::BufWriter::new(gzip.stdin.take().context("it is a pipe")?);
    for number in 0..MOST - DIRECTORIES {
        out.write_all(&header(b'0', &format!("{:x}/{number:x}", number % DIRECTORIES), "", 0))?;
    }
    out.write_all(&[0; 1024])?;
    drop(out);
    ensure!(gzip.wait()?.success());
    let built = site.build(host, &format!("tar:{}", archive.display()))?;
    ensure!(built.status.success(), "it ended with {}: {}", built.status, String::from_utf8_lossy(&built.stderr));
    Ok(())
}
