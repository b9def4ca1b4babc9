//! Packages of PyPI and npm as layers: fetched by pip and npm, unpacked, and never run.
//!
//! pip takes wheels only, which are archives of files, and npm is told to run no scripts; so nothing of a package is
//! executed here. Where to download from is their business and the host's configuration, never ours. What they need
//! besides is resolved by them at this moment, as a Debian release's packages are.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use oci::Contents;
use types::Dirs;
use types::progress::Progress;

use crate::build::ImageError;
use crate::cache::{Bucket, CacheError, Staging};
use crate::debian::pack;
use crate::digest::Hasher;
use crate::layer::{Layer, Look};
use crate::recipe::{Base, NpmPackage, PipPackage};
use crate::tool::{Tool, ToolError};

/// Changes whenever the same packages would give other files.
const BUILDER: &str = "forkd packages of indexes 1";
const BUCKET: &str = "packages-v1";
/// The oldest C libraries first; what is newer than Debian 12's is not offered.
const PLATFORMS: [&str; 8] = [
    "manylinux1_x86_64",
    "manylinux2010_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_31_x86_64",
    "manylinux_2_34_x86_64",
    "manylinux_2_35_x86_64",
];
/// Where Debian has its programs, and what it calls the place of Python packages that are not its own.
const DEBIAN_PROGRAMS: &str = "/usr/bin";
const DEBIAN_PACKAGES: &str = "dist-packages";
/// The first line of a script is not longer.
const MAX_SHEBANG: u64 = 4096;

/// The Python of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Python {
    /// Such as `3.11`.
    version: String,
    /// Its program.
    program: String,
    /// Where it looks for packages that are not the distribution's.
    packages: String,
}

impl Python {
    /// The one that `python3` means: what was built into /usr/local comes before Debian's, which may be among packages
    /// that are only installed later.
    fn find(contents: &mut Contents<'_>, debs: &[String]) -> Result<Option<Self>, ImageError> {
        let minor = |name: &str| name.strip_prefix("python3.").and_then(|minor| minor.parse::<u8>().ok());
        for (dir, packages) in [("/usr/local/bin", "site-packages"), (DEBIAN_PROGRAMS, DEBIAN_PACKAGES)] {
            let names = contents.names(dir).map_err(|source| oci::WriteError::Look { source })?;
            if let Some(minor) = names.iter().filter_map(|name| minor(name)).max() {
                return Ok(Some(Self::new(minor, dir, packages)));
            }
        }
        // The package that has the program: `python3.11-minimal_3.11.2-6_amd64.deb`.
        let of_deb = |deb: &String| minor(deb.split_once("-minimal_")?.0);
        Ok(debs.iter().filter_map(of_deb).max().map(|minor| Self::new(minor, DEBIAN_PROGRAMS, DEBIAN_PACKAGES)))
    }

    fn new(minor: u8, programs: &str, packages: &str) -> Self {
        let version = format!("3.{minor}");
        let packages = format!("/usr/local/lib/python{version}/{packages}");
        Self { program: format!("{programs}/python{version}"), packages, version }
    }
}

/// The layers of all packages of indexes that a recipe names. `debs` are files of Debian packages that will be installed.
pub(crate) fn layers(
    base: &Base,
    contents: &mut Contents<'_>,
    debs: &[String],
    dirs: &Dirs,
    progress: &dyn Progress,
) -> Result<Vec<PathBuf>, ImageError> {
    let mut layers = Vec::new();
    if !base.pip.is_empty() {
        let names: Vec<_> = base.pip.iter().map(PipPackage::as_str).collect();
        let python = Python::find(contents, debs)?.ok_or(ImageError::NoPython)?;
        let words = [&["pip", python.packages.as_str()], &names[..]].concat();
        layers.push(layer(&words, dirs, progress, |staging, layer| pip(&names, &python, staging, layer, progress))?);
    }
    if !base.npm.is_empty() {
        let names: Vec<_> = base.npm.iter().map(NpmPackage::as_str).collect();
        let words = [&["npm"], &names[..]].concat();
        layers.push(layer(&words, dirs, progress, |staging, layer| npm(&names, staging, layer, progress))?);
    }
    Ok(layers)
}

/// A layer in the cache, called after what it depends on.
fn layer(
    words: &[&str],
    dirs: &Dirs,
    progress: &dyn Progress,
    fill: impl FnOnce(&Staging<'_>, &mut Layer<File>) -> Result<(), ImageError>,
) -> Result<PathBuf, ImageError> {
    let start = Hasher::default().part(BUILDER.as_bytes());
    let digest = words.iter().fold(start, |hash, word| hash.part(word.as_bytes())).hex();
    let key = format!("{}-{}", words[0], &digest[..16]);
    Bucket::open(&dirs.cache, BUCKET)?.find_or_make(&key, "tar.zst", progress, |staging| {
        let archive = staging.path().join("layer.tar");
        let file = File::create_new(&archive).map_err(CacheError::new("create", &archive))?;
        let mut layer = Layer::new(file);
        fill(staging, &mut layer)?;
        layer.finish()?;
        pack(&archive, staging)
    })
}

fn pip(
    names: &[&str],
    python: &Python,
    staging: &Staging<'_>,
    layer: &mut Layer<File>,
    progress: &dyn Progress,
) -> Result<(), ImageError> {
    let stage = progress.stage("Fetching packages of PyPI", None);
    let target = staging.path().join("pip");
    let mut tool = Tool::find("python3", "python3-pip")?.holding(staging.lock())?;
    let command = tool.command();
    command.args(["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-compile"]);
    command.args(["--only-binary=:all:", "--implementation=cp", "--python-version", &python.version]);
    command.args(PLATFORMS.iter().map(|platform| format!("--platform={platform}")));
    command.arg("--target").arg(&target).arg("--").args(names);
    match tool.run(&mut |line| stage.note(line)) {
        Err(ToolError::Failed { said, .. }) if said.contains("No module named pip") => {
            return Err(ToolError::Missing { tool: "pip", packages: "python3-pip" }.into());
        }
        done => done?,
    }
    let scripts = target.join("bin");
    if scripts.is_dir() {
        for name in sorted(&scripts)? {
            script(&scripts.join(&name), &format!("/usr/local/bin/{name}"), &python.program, layer)?;
        }
        fs::remove_dir_all(&scripts).map_err(CacheError::new("remove", &scripts))?;
    }
    Ok(layer.tree(&target, &python.packages)?)
}

/// A program of a package. Scripts name the Python that unpacked them, and are to name the guest's.
fn script(path: &Path, to: &str, program: &str, layer: &mut Layer<File>) -> Result<(), ImageError> {
    let failed = |source| ImageError::from(CacheError::new("read", path)(source));
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let len = file.get_ref().metadata().map_err(failed)?.len();
    let mut first = Vec::new();
    (&mut file).take(MAX_SHEBANG).read_until(b'\n', &mut first).map_err(failed)?;
    let rest = len.saturating_sub(first.len() as u64);
    if first.starts_with(b"#!") && String::from_utf8_lossy(&first).contains("python") {
        first = format!("#!{program}\n").into_bytes();
    }
    let len = rest + first.len() as u64;
    Ok(layer.file(to, Look::default(), true, len, first.chain(file))?)
}

fn npm(
    names: &[&str],
    staging: &Staging<'_>,
    layer: &mut Layer<File>,
    progress: &dyn Progress,
) -> Result<(), ImageError> {
    let stage = progress.stage("Fetching packages of npm", None);
    let prefix = staging.path().join("npm");
    fs::create_dir(&prefix).map_err(CacheError::new("create the directory", &prefix))?;
    let mut tool = Tool::find("npm", "npm")?.holding(staging.lock())?;
    tool.command().args(["install", "--global", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]);
    tool.command().arg("--prefix").arg(&prefix).arg("--").args(names);
    tool.run(&mut |line| stage.note(line))?;
    Ok(layer.tree(&prefix, "/usr/local")?)
}

fn sorted(dir: &Path) -> Result<Vec<String>, ImageError> {
    let failed = |source| ImageError::from(CacheError::new("list", dir)(source));
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_program = entry.metadata().map_err(failed)?.permissions().mode() & 0o100 != 0;
        names.extend(entry.file_name().into_string().ok().filter(|_| is_program));
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use oci::{Image, Limits, Platform};

    use super::*;

    fn python(files: &[&str], debs: &[&str]) -> Option<Python> {
        let debs: Vec<_> = debs.iter().map(ToString::to_string).collect();
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let source = format!("dir:{}", dir.path().display()).parse().unwrap();
        let image = Image::open(&source, &Platform::default()).unwrap();
        Python::find(&mut image.contents(Limits::default()).unwrap(), &debs).unwrap()
    }

    #[test]
    fn the_python_of_an_image_is_the_one_that_a_shell_would_find() {
        let debian = python(&["usr/bin/python3.11", "usr/bin/python3", "usr/bin/python3.11-config"], &[]).unwrap();
        assert_eq!((debian.version.as_str(), debian.program.as_str()), ("3.11", "/usr/bin/python3.11"));
        assert_eq!(debian.packages, "/usr/local/lib/python3.11/dist-packages");
        let own = python(&["usr/bin/python3.11", "usr/local/bin/python3.9", "usr/local/bin/python3.13"], &[]).unwrap();
        assert_eq!(own.packages, "/usr/local/lib/python3.13/site-packages");
        assert_eq!(python(&["usr/bin/python2.7"], &["python3_3.11.2-1_amd64.deb", "python3.11-dev_1_amd64.deb"]), None);
    }

    #[test]
    fn a_python_that_is_installed_later_counts_too() {
        let debs = ["python3-minimal_3.11.2-1+b1_amd64.deb", "python3.11-minimal_3.11.2-6_amd64.deb"];
        let debian = python(&["usr/bin/python2.7"], &debs).unwrap();
        assert_eq!(debian.program, "/usr/bin/python3.11");
        assert_eq!(debian.packages, "/usr/local/lib/python3.11/dist-packages");
        let own = python(&["usr/local/bin/python3.13"], &debs).unwrap();
        assert_eq!(own.version, "3.13", "a shell would find that first");
    }

    #[test]
    fn scripts_name_the_python_of_the_guest() {
        let dir = tempfile::tempdir().unwrap();
        let run = |text: &str| {
            let path = dir.path().join("script");
            fs::write(&path, text).unwrap();
            let archive = dir.path().join("layer.tar");
            let mut layer = Layer::new(File::create(&archive).unwrap());
            script(&path, "/usr/local/bin/x", "/usr/bin/python3.11", &mut layer).unwrap();
            layer.finish().unwrap();
            let mut archive = tar::Archive::new(File::open(&archive).unwrap());
            let mut text = String::new();
            archive.entries().unwrap().next().unwrap().unwrap().read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!(run("#!/home/me/python\nimport x\n"), "#!/usr/bin/python3.11\nimport x\n");
        assert_eq!(run("#!/bin/sh\npython\n"), "#!/bin/sh\npython\n");
        assert_eq!(run(""), "");
    }
}
