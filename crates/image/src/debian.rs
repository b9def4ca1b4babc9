//! A tree of Debian packages as a layer, made by mmdebstrap (or debootstrap where only that is installed).
//!
//! The tools run contained and as root of some kind, so that the files get their real owners, and no mount or process
//! of theirs outlives us. What they make is an archive, so nobody but them ever sees those owners.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use types::Dirs;
use types::progress::{Progress, Stage};

use crate::apt::{self, Apt, AptError};
use crate::build::ImageError;
use crate::cache::{Bucket, CacheError, Staging};
use crate::digest::Hasher;
use crate::recipe::{PackageName, Suite};
use crate::tool::Tool;

/// Changes whenever the same packages would give a different tree.
const BUILDER: &str = "forkd debian builder 1";
/// What is to be installed where something is missing.
const PACKAGES: &str = "mmdebstrap e2fsprogs";
/// As quick as possible: it is read as often as it is written.
const ZSTD_LEVEL: i32 = 1;

/// Nobody reads manuals in a sandbox; licences stay.
const LEFT_OUT: &[&str] = &[
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
];

/// Removes what belongs to the host or to the moment. What a guest is called and whom it asks for names is decided
/// when it runs, so those files are neutral. (One line: mmdebstrap wonders whether it is the name of a program.)
const TIDY: &str = concat!(
    "set -eu; cd \"$1\"; ",
    "rm -f etc/resolv.conf etc/hostname etc/hosts etc/machine-id var/lib/dbus/machine-id; ",
    ": > etc/resolv.conf; : > etc/machine-id; echo localhost > etc/hostname; ",
    "printf '127.0.0.1 localhost\\n::1 localhost ip6-localhost ip6-loopback\\n' > etc/hosts; ",
    "find var/log -name '*.log' -delete; ",
    "rm -rf var/cache/debconf/*-old var/cache/apt/*.bin var/cache/apt/archives/*.deb var/cache/ldconfig/aux-cache",
);

/// Times are those of the packages, and never the moment's.
const TAR: [&str; 5] = ["--sort=name", "--mtime=@0", "--clamp-mtime", "--numeric-owner", "--xattrs"];

/// A release and packages of it.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) suite: &'a Suite,
    pub(crate) packages: &'a BTreeSet<PackageName>,
}

impl Wanted<'_> {
    fn digest(&self) -> String {
        let start = Hasher::default().part(BUILDER.as_bytes()).part(self.suite.as_str().as_bytes());
        self.packages.iter().fold(start, |hash, package| hash.part(package.as_str().as_bytes())).hex()
    }

    fn include(&self) -> Option<String> {
        let names: Vec<_> = self.packages.iter().map(PackageName::as_str).collect();
        (!names.is_empty()).then(|| format!("--include={}", names.join(",")))
    }
}

/// The packages installed, as an archive in the cache.
pub(crate) fn layer(wanted: Wanted<'_>, dirs: &Dirs, progress: &dyn Progress) -> Result<PathBuf, ImageError> {
    let bucket = Bucket::open(&dirs.cache, "debian-v1")?;
    let key = format!("{}-{}", wanted.suite, &wanted.digest()[..16]);
    bucket.find_or_make(&key, "tar.zst", progress, |staging| {
        let stage = progress.stage(&format!("Installing Debian {}", wanted.suite), None);
        let archive = bootstrap(wanted, staging, &*stage)?;
        stage.note("packing");
        pack(&archive, staging)
    })
}

/// Compresses a file of the staging area.
pub(crate) fn pack(archive: &Path, staging: &Staging<'_>) -> Result<PathBuf, ImageError> {
    let packed = staging.path().join("packed");
    let failed = |source| ImageError::from(CacheError::new("compress", archive)(source));
    let compress = || -> io::Result<()> {
        let mut encoder = zstd::Encoder::new(File::create_new(&packed)?, ZSTD_LEVEL)?;
        io::copy(&mut File::open(archive)?, &mut encoder)?;
        encoder.finish()?;
        fs::remove_file(archive)
    };
    compress().map_err(failed)?;
    Ok(packed)
}

fn bootstrap(wanted: Wanted<'_>, staging: &Staging<'_>, stage: &dyn Stage) -> Result<PathBuf, ImageError> {
    if !Tool::is_installed("mmdebstrap") && Tool::is_installed("debootstrap") {
        return debootstrap(wanted, staging, stage);
    }
    let archive = staging.path().join("root.tar");
    let mut tool = Tool::contained("mmdebstrap", PACKAGES)?.holding(staging.lock())?;
    let command = tool.command();
    command.args(["--variant=minbase", "--components=main", "--mode=root", "--format=tar"]);
    command.args(LEFT_OUT.iter().map(|rule| format!("--dpkgopt={rule}")));
    command.arg(format!("--customize-hook={TIDY}")).args(wanted.include());
    command.arg(wanted.suite.as_str()).arg(&archive).args(host_sources(wanted.suite, staging, stage));
    // Where the tree is before it is an archive: goes with the staging area, whoever is killed.
    command.env("TMPDIR", staging.path());
    set_environment(&mut tool);
    tool.run(&mut |line| announce(line, stage))?;
    Ok(archive)
}

/// Older, slower, and without security updates unless the host's sources are written into the tree after.
fn debootstrap(wanted: Wanted<'_>, staging: &Staging<'_>, stage: &dyn Stage) -> Result<PathBuf, ImageError> {
    let target = staging.path().join("root");
    let sources = host_sources(wanted.suite, staging, stage);
    let mut tool = Tool::contained("debootstrap", PACKAGES)?.holding(staging.lock())?;
    tool.command().args(["--variant=minbase", "--components=main"]).args(wanted.include());
    tool.command().arg(wanted.suite.as_str()).arg(&target).args(base_uri(&sources, wanted.suite.as_str()));
    set_environment(&mut tool);
    tool.run(&mut |line| announce(line, stage))?;
    if !sources.is_empty() {
        let list = target.join("etc/apt/sources.list");
        fs::write(&list, sources.join("\n") + "\n").map_err(CacheError::new("write", &list))?;
    }
    let mut tidy = Tool::contained("sh", "dash")?.holding(staging.lock())?;
    tidy.command().args(["-c", &format!("{TIDY}; rm -rf var/lib/apt/lists/*"), "sh"]).arg(&target);
    tidy.run(&mut |_| ())?;
    let archive = staging.path().join("root.tar");
    let mut tar = Tool::contained("tar", "tar")?.holding(staging.lock())?;
    tar.command().args(TAR).arg("-C").arg(&target).arg("-cf").arg(&archive).arg(".");
    tar.run(&mut |_| ())?;
    Ok(archive)
}

/// Both tools begin what is worth knowing with an `I:`; the text of our own hook is not.
fn announce(line: &str, stage: &dyn Stage) {
    if let Some(step) = line.strip_prefix("I: ").filter(|step| !step.starts_with("running --")) {
        stage.note(step);
    }
}

/// The URI of the line that has the release itself; ours have no spaces but between fields.
fn base_uri<'a>(sources: &'a [String], suite: &str) -> Option<&'a str> {
    let line = sources.iter().find(|line| line.ends_with(&format!(" {suite} main")))?;
    line.split(' ').rev().nth(2)
}

/// Where the host gets this release from; nothing (the bootstrap tool's own default) when it does not, or when apt is
/// of no help. The image can be built either way, so failing here is not failing.
pub(crate) fn host_sources(suite: &Suite, staging: &Staging<'_>, stage: &dyn Stage) -> Vec<String> {
    if !Apt::is_installed() {
        return Vec::new();
    }
    ask_apt(suite, staging, stage).unwrap_or_else(|err| {
        log::warn!("the host's package sources are not used: {err}");
        Vec::new()
    })
}

fn ask_apt(suite: &Suite, staging: &Staging<'_>, stage: &dyn Stage) -> Result<Vec<String>, AptError> {
    if let Some(sources) = Apt::of_host(staging).sources(suite)? {
        return Ok(sources);
    }
    stage.note("updating package lists");
    Ok(Apt::refreshed(staging, stage)?.sources(suite)?.unwrap_or_default())
}
/// The same packages give the same times; and the host's proxy is used without being written into the image.
fn set_environment(tool: &mut Tool) {
    tool.command().env("SOURCE_DATE_EPOCH", "0");
    for (variable, scheme) in [("http_proxy", "http"), ("https_proxy", "https")] {
        match apt::proxy(scheme) {
            Ok(Some(proxy)) if std::env::var_os(variable).is_none() => {
                tool.command().env(variable, proxy);
            }
            Ok(_) => {}
            Err(err) => log::debug!("apt-config says nothing about proxies: {err}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debootstrap_gets_the_base_uri() {
        let sources = [
            "deb [signed-by=/k] http://m.test/sec/ bookworm-security main".to_owned(),
            "deb [signed-by=/k] http://m.test/debian/ bookworm main".to_owned(),
        ];
        assert_eq!(base_uri(&sources, "bookworm"), Some("http://m.test/debian/"));
        assert_eq!(base_uri(&sources, "trixie"), None);
    }

    #[test]
    fn tidying_leaves_nothing_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for sub in ["etc", "var/log/apt", "var/cache/debconf", "var/lib/dbus"] {
            fs::create_dir_all(root.join(sub)).unwrap();
        }
        for (file, text) in [
            ("etc/resolv.conf", "nameserver 192.0.2.1"),
            ("etc/hostname", "builder"),
            ("etc/machine-id", "0123"),
            ("var/lib/dbus/machine-id", "0123"),
            ("var/log/apt/term.log", "log"),
            ("var/cache/debconf/config.dat-old", "x"),
        ] {
            fs::write(root.join(file), text).unwrap();
        }
        let mut tidy = Tool::find("sh", "dash").unwrap();
        tidy.command().args(["-c", TIDY, "sh"]).arg(root);
        tidy.run(&mut |_| ()).unwrap();
        let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
        assert_eq!((read("etc/resolv.conf"), read("etc/machine-id")), (String::new(), String::new()));
        assert_eq!(read("etc/hostname"), "localhost\n");
        assert!(read("etc/hosts").contains("::1 localhost"));
        for gone in ["var/lib/dbus/machine-id", "var/log/apt/term.log", "var/cache/debconf/config.dat-old"] {
            assert!(!root.join(gone).exists(), "{gone} is still there");
        }
    }
}
