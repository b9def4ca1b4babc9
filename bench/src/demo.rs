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

/// Shows it.
pub(crate) fn run() -> Result<()> {
    println!("What this machine can do (forkd doctor):\n");
    // A doctor who finds nothing usable has said why; the run below then fails with the same words.
    Command::new(binary()?).arg("doctor").status()?;
    println!("\nA microVM with 2 vCPUs runs Python (forkd run --recipe python-numpy -- python3 ...):\n");
    let words = ["--recipe", "python-numpy", "--vcpus", "2", "--", "python3", "-c", SCRIPT];
    let stages = timed_run(None, &words)?;
    println!("\nWhere the time went:\n");
    for (name, micros) in stages {
        let (name, milliseconds) = match name.strip_suffix("_us") {
            Some(name) => (name, micros / 1000),
            None => (name.trim_end_matches("_ms"), micros),
        };
        println!("  {:<24}{milliseconds:>8} ms", name.replace('_', " "));
    }
    Ok(())
}
