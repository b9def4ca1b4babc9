//! Makes a shared object of `src/sys/module.rs`.

use std::path::PathBuf;
use std::process::Command;
use std::{env, io};

const SOURCE: &str = "src/sys/module.rs";
/// It is loaded into processes with any libc, so it needs none.
const ALONE: &[&str] = &["-Clink-arg=-nostdlib", "-Clink-arg=-nostartfiles", "-Cpanic=abort"];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={SOURCE}");
    let variable = |name| env::var_os(name).ok_or_else(|| io::Error::other(format!("cargo does not say {name}")));
    let module = PathBuf::from(variable("OUT_DIR")?).join("reseed.node");
    let mut rustc = Command::new(variable("RUSTC")?);
    rustc.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=reseed", "-Copt-level=s", "-Cstrip=symbols"]);
    rustc.args(ALONE).arg("--target").arg(variable("TARGET")?).arg("-o").arg(module).arg(SOURCE);
    match rustc.status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{SOURCE} cannot be built"))),
    }
}
