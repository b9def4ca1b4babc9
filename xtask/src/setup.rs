//! Installs what the build, the demo and the tests need from the distribution, and nothing that is there already.

#![expect(clippy::print_stdout, reason = "a tool talks to whoever runs it")]

use std::env;
use std::path::Path;
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
    Tool { program: "tar", package: "tar", purpose: "copying into the emulated host" },
    Tool {
        program: "qemu-system-x86_64",
        package: "qemu-system-x86",
        purpose: "the emulated host, where KVM is unusable",
    },
];

/// Debian's Python makes no environments without this.
const ENSUREPIP: (&str, &str) = ("import ensurepip", "python3-venv");

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
    if missing.is_empty() {
        return Ok(());
    }
    if !on_path("apt-get") {
        bail!("this is no Debian or Ubuntu; install these by hand: {}", missing.join(" "));
    }
    apt_get(&["update", "-qq"])?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(&missing);
    apt_get(&arguments)
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
