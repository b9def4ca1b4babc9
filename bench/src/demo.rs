//! The demonstration behind `make demo`: the doctor's findings, a VM with Python and numpy, and where the time went.

use std::process::Command;

use anyhow::Result;

use crate::forkd::{binary, timed_run};

const SCRIPT: &str = "\
import os, platform, numpy
print('  kernel        ', platform.release())
print('  vCPUs         ', os.cpu_count())
print('  numpy         ', numpy.__version__)
print('  zeros(5)      ', numpy.zeros(5).tolist())";

/// Stages in the order they happen, and what a person calls them.
const STAGES: &[(&str, &str)] = &[
    ("parts", "image, kernel and initramfs found or built"),
    ("machine", "emulated host started"),
    ("push", "files brought into the emulated host"),
    ("boot", "VM booted until its agent answered"),
    ("vmm_setup", "  of it the VMM, until the first vCPU ran"),
    ("guest_boot", "  of it the guest's kernel and agent"),
    ("exec", "command started"),
    ("command", "command ran"),
    ("inside boot", "VM booted until its agent answered (emulated)"),
    ("inside vmm_setup", "  of it the VMM, until the first vCPU ran"),
    ("inside guest_boot", "  of it the guest's kernel and agent"),
    ("inside exec", "command started (emulated)"),
    ("inside command", "command ran (emulated)"),
    ("total", "all of it"),
];

/// Shows it.
pub(crate) fn run() -> Result<()> {
    println!("What this machine can do (forkd doctor):\n");
    // A doctor who finds nothing usable has said why; the run below then fails with the same words.
    Command::new(binary()?).arg("doctor").status()?;
    println!("\nA microVM with 2 vCPUs runs Python (forkd run --recipe python-numpy -- python3 ...):\n");
    let words = ["--recipe", "python-numpy", "--vcpus", "2", "--", "python3", "-c", SCRIPT];
    let stages = timed_run(None, &words)?;
    println!("\nWhere the time went:\n");
    for (stage, explanation) in STAGES {
        if let Some(ms) = stages.get(*stage) {
            println!("  {explanation:<52}{ms:>9.0} ms");
        }
    }
    Ok(())
}
