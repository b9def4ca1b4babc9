//! The way into the emulated host: pushes the binaries, what VMs boot from and this program itself, and runs it there.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use engine::Program;
use machine::{Machine, Push};
use proto::guest::ExecRequest;
use session::Event;
use types::Dirs;
use types::progress::Silent;

use crate::finding;
use crate::host::{Artifacts, Host, INSIDE};

/// Set inside when the native guest runs nowhere else.
const NATIVE: &str = "FORKD_E2E_NATIVE";
/// How long the VM tests may take inside; they take some minutes.
const PATIENCE: Duration = Duration::from_secs(1500);
/// How often it is asked whether it is still there.
const HEARTBEAT: Duration = Duration::from_secs(20);
/// How often in a row it may leave that without an answer; a busy one may be slow once.
const SILENCES: usize = 3;
/// How often the emulated host may die under the tests. QEMU's emulation of nested virtualisation is not flawless, and
/// a host that dies of it says nothing about forkd.
const DEATHS: usize = 2;

/// Whether this is inside, and tests with the native guest belong here.
pub(crate) fn has_native_tests() -> bool {
    std::env::var_os(NATIVE).is_some()
}

/// Runs the VM tests inside, those of the native guest too if they run nowhere else; true when all passed.
#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
pub(crate) fn run(host: &Host, native_too: bool) -> Result<bool> {
    let mut said = Vec::new();
    for _ in 0..DEATHS {
        match run_once(host, native_too, &mut said) {
            Err(error) if Machine::find(&host.dirs)?.is_none() && !finding::was_told(&said) => {
                eprintln!("again: all VM tests, because the emulated host died ({error:#})");
            }
            done => return done,
        }
    }
    run_once(host, native_too, &mut said)
}

/// Once, with all of standard error remembered.
fn run_once(host: &Host, native_too: bool, said: &mut Vec<u8>) -> Result<bool> {
    let vmm = Program::Vmm.find()?;
    let machine = machine::start(&host.dirs, &Program::Agent.find()?, &Silent).context("the emulated host")?;
    let artifacts = &host.artifacts;
    let tests = std::env::current_exe()?;
    let Artifacts { kernel, initramfs, debian, python, tiny } = artifacts;
    let Host { forkd, torture_guest, list_tree, .. } = host;
    let files = [&tests, &vmm, forkd, torture_guest, list_tree, kernel, initramfs, debian, python, tiny];
    let pushes: Vec<Push> = files.iter().map(|file| push(file)).collect();
    let pushed = machine.push(&pushes, &Silent).context("pushing into the emulated host")?;
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let [tests, vmm, rest @ ..] = &pushed[..] else { anyhow::bail!("the emulated host took {} files", pushed.len()) };
    let named = std::env::join_paths(rest)?.to_string_lossy().into_owned();
    let mut words = vec![text(tests)];
    words.extend(std::env::args().skip(1));
    let request = ExecRequest {
        argv: words,
        env: [
            (INSIDE, named),
            ("FORKD_HOME", "/var/lib/forkd/home".into()),
            ("FORKD_PLACE", "local".into()),
            ("FORKD_VMM", text(vmm)),
            ("RUST_BACKTRACE", "0".into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .chain(native_too.then(|| (NATIVE.to_owned(), "1".to_owned())))
        .chain(std::env::vars().filter(|(name, _)| name.starts_with("FORKD_E2E_")))
        .collect(),
        ..ExecRequest::default()
    };
    let mut exec = machine.exec(&request)?;
    // A machine that hangs is ended, which breaks the connection and ends the wait below.
    let (_done, running) = std::sync::mpsc::channel::<()>();
    let dirs = host.dirs.clone();
    std::thread::spawn(move || watch(&dirs, &running));
    loop {
        match exec.next_event()? {
            Event::Stdout(bytes) => io::stdout().write_all(&bytes)?,
            Event::Stderr(bytes) => {
                io::stderr().write_all(&bytes)?;
                said.extend(bytes);
            }
            Event::Exited { status, .. } => return Ok(status.shell_code() == 0),
        }
    }
}

/// Ends the machine when it no longer answers, or when all has taken too long.
fn watch(dirs: &Dirs, running: &Receiver<()>) {
    let begun = Instant::now();
    let mut silent = 0;
    while running.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
        // An agent has a minute to answer.
        let answers = matches!(Machine::find(dirs), Ok(Some(machine)) if machine.connect().is_ok());
        silent = if answers { 0 } else { silent + 1 };
        if silent == SILENCES || begun.elapsed() > PATIENCE.max(crate::asked_limit().unwrap_or_default()) {
            drop(machine::stop(dirs, &Silent));
            return;
        }
    }
}

fn push(file: &Path) -> Push {
    let name = file.file_name().unwrap_or_else(|| OsStr::new("file")).to_string_lossy().into_owned();
    Push { local: file.into(), remote_name: name }
}
