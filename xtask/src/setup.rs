//! Installs what the build, the demo and the tests need from the distribution, and nothing that is there already.

#![expect(clippy::print_stdout, reason = "a tool talks to whoever runs it")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A program, the package that brings it, and what it is for.
struct Tool {
    program: &'static str,
    package: &'static str,
    purpose: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { program: "cc", package: "gcc", purpose: "linking" },
    Tool { program: "mmdebstrap", package: "mmdebstrap", purpose: "building root filesystems" },
    Tool { program: "mke2fs", package: "e2fsprogs", purpose: "making disk images" },
    Tool { program: "node", package: "nodejs", purpose: "testing what keeps it warm" },
    Tool { program: "tar", package: "tar", purpose: "copying into the emulated host" },
    Tool { program: "umoci", package: "umoci", purpose: "building, in tests, the images that are pulled" },
    Tool { program: "skopeo", package: "skopeo", purpose: "pushing them to a registry" },
    Tool { program: "cpio", package: "cpio", purpose: "reading back, in tests, what a guest boots from" },
    Tool {
        program: "qemu-system-x86_64",
        package: "qemu-system-x86",
        purpose: "the emulated host, where KVM is unusable",
    },
];

/// Debian's Python makes no environments without this.
const ENSUREPIP: (&str, &str) = ("import ensurepip", "python3-venv");

/// The registry of the tests. Installing its package would start it as a service, so it is only unpacked, below `target`.
const REGISTRY: (&str, &str) = ("usr/bin/docker-registry", "docker-registry");

/// mmdebstrap verifies Debian's signatures with it, also on a host that is not Debian.
const KEYRING: (&str, &str) = ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring");

pub(crate) fn run() -> Result<()> {
    let mut missing: Vec<&str> = Vec::new();
    for tool in TOOLS.iter().filter(|tool| !on_path(tool.program)) {
        println!("setup: {} is missing ({}): installing {}", tool.program, tool.purpose, tool.package);
        missing.push(tool.package);
    }
    if !Path::new(KEYRING.0).exists() {
        println!("setup: Debian's archive keys are missing: installing {}", KEYRING.1);
        missing.push(KEYRING.1);
    }
    if !Command::new("python3")
        .args(["-c", ENSUREPIP.0])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|done| done.success())
    {
        println!("setup: Python makes no environments (testing its SDK): installing {}", ENSUREPIP.1);
        missing.push(ENSUREPIP.1);
    }
    let tools = target_directory().join("tools");
    let has_registry = tools.join(REGISTRY.0).exists();
    if missing.is_empty() && has_registry {
        return Ok(());
    }
    if !on_path("apt-get") {
        bail!("this is no Debian or Ubuntu; install these by hand: {} {}", missing.join(" "), REGISTRY.1);
    }
    apt_get(&["update", "-qq"])?;
    if !missing.is_empty() {
        let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
        arguments.extend(&missing);
        apt_get(&arguments)?;
    }
    if has_registry { Ok(()) } else { unpack(REGISTRY.1, &tools) }
}

/// Downloads a package and unpacks it into a directory; nothing of it is run or started.
fn unpack(package: &str, into: &Path) -> Result<()> {
    println!("setup: {package} is missing (testing pulls): unpacking it into {}", into.display());
    let work = into.join("packages");
    fs::create_dir_all(&work)?;
    let run = |command: &mut Command| {
        let status = command.current_dir(&work).status().with_context(|| format!("{command:?}"))?;
        if status.success() { Ok(()) } else { bail!("{command:?} failed; run it by hand to see why") }
    };
    run(Command::new("apt-get").args(["-qq", "download", package]))?;
    let packages = fs::read_dir(&work)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    packages.iter().try_for_each(|package| run(Command::new("dpkg-deb").arg("-x").arg(package).arg(into)))?;
    Ok(fs::remove_dir_all(&work)?)
}

/// Where cargo puts what it builds.
fn target_directory() -> PathBuf {
    let own = env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty());
    own.map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from)
}

fn on_path(program: &str) -> bool {
    let extra = ["/usr/sbin", "/sbin"].map(Into::into);
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain(extra).any(|dir| dir.join(program).is_file())
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let root = env::var_os("HOME").is_some_and(|home| home == "/root") || !on_path("sudo");
    let mut command = if root { Command::new("apt-get") } else { Command::new("sudo") };
    if !root {
        command.arg("apt-get");
    }
    let status = command.env("DEBIAN_FRONTEND", "noninteractive").args(arguments).status().context("apt-get")?;
    if !status.success() {
        bail!("apt-get {} failed; run it by hand to see why", arguments.join(" "));
    }
    Ok(())
}
