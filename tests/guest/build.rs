//! Compiles the guest with the C compiler that also links every program here.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

const SOURCES: &str = "guest";
/// No library, no position to be found, one segment at 1 MiB; and general registers only: a KVM that emulates guests knows
/// no others, and nobody has to save what is not used.
const FLAGS: &[&str] = &[
    "-O2",
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fcf-protection=none",
    "-fno-asynchronous-unwind-tables",
    "-fno-pic",
    "-fno-stack-protector",
    "-fno-strict-aliasing",
    "-mgeneral-regs-only",
    "-mno-red-zone",
    "-nostdlib",
    "-no-pie",
    "-static",
    "-Wl,-Ttext=0x100000,--build-id=none,-N,--no-warn-rwx-segments",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={SOURCES}");
    let elf = Path::new(&env::var("OUT_DIR")?).join("guest.elf");
    let files = fs::read_dir(SOURCES)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>, io::Error>>()?;
    let sources = files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "c" || kind == "S"));
    let compiled = Command::new("cc").args(FLAGS).arg("-o").arg(&elf).args(sources).status()?;
    if compiled.success() { Ok(()) } else { Err("the guest does not compile".into()) }
}
