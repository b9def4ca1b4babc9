//! Dependencies point one way. A crate that names what it must not know fails here, with the chain that led to it.

#![expect(clippy::print_stdout, reason = "a tool talks to whoever runs it")]

use std::process::Command;

use anyhow::{Context, Result, bail};

/// Who must not know whom, directly or through others.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("types", &["libc", "rustix"]),
    ("api", &["libc", "rustix", "tokio", "types", "engine"]),
    ("client", &["tokio", "engine", "session", "clap"]),
    ("proto", &["kvm-ioctls", "tokio"]),
    ("virtio", &["kvm-ioctls", "tokio", "proto"]),
    ("vmm", &["tokio", "engine", "image", "session"]),
    ("agent", &["tokio", "kvm-ioctls", "engine", "clap"]),
    ("ext4", &["types", "rustix", "libc", "tokio"]),
    ("oci", &["image", "proto", "engine", "clap", "tokio"]),
    ("image", &["proto", "virtio", "engine", "clap"]),
    ("layer", &["types", "proto", "store", "kvm-ioctls", "tokio"]),
    ("store", &["proto", "engine", "clap", "tokio"]),
    ("pack", &["proto", "engine", "clap", "tokio"]),
    ("net", &["proto", "engine", "clap", "tokio"]),
    ("engine", &["vmm", "kvm-ioctls", "clap", "tokio", "machine", "api", "daemon"]),
    ("daemon", &["vmm", "virtio", "kvm-ioctls", "machine", "cli"]),
    ("machine", &["vmm", "kvm-ioctls", "clap", "tokio"]),
    ("cli", &["vmm", "virtio", "kvm-ioctls"]),
];

pub(crate) fn run() -> Result<()> {
    let mut found = Vec::new();
    for (package, forbidden) in FORBIDDEN {
        let known = dependencies(package)?;
        for name in forbidden.iter().filter(|name| known.iter().any(|known| known == *name)) {
            found.push(format!("{package} depends on {name}; see: cargo tree -p {package} -i {name}"));
        }
    }
    if !found.is_empty() {
        bail!("dependencies point the wrong way:\n  {}", found.join("\n  "));
    }
    println!("deps: {} crates look only where they may", FORBIDDEN.len());
    Ok(())
}

fn dependencies(package: &str) -> Result<Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .output()
        .context("cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree -p {package}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout).context("cargo tree")?;
    Ok(text.lines().skip(1).filter_map(|line| line.split(' ').next()).map(Into::into).collect())
}
