//! VM tests: each boots real VMs and reads like a script. `make vmtest` runs them; words after `--` filter.
//!
//! A program and not a test target, so that it is built as what it tests is, and lies beside it.
//!
//! ```text
//! usable KVM       this program runs every test right here
//! no usable KVM    it starts the emulated host, pushes itself in, runs the VM tests there, then the rest out here
//! ```
//!
//! One boot of the emulated host serves the whole run; images and kernels come from the cache. Nothing is ever
//! skipped: a test that cannot boot its VM fails.

mod boot;
mod cli;
mod disk;
mod exec;
mod faults;
mod fork;
mod host;
mod inside;
mod machine_life;
mod network;
mod spawn_budget;
mod world;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};

use crate::host::Host;

/// A test: what it is called, and what it does with the host.
type Test = (&'static str, fn(&Host) -> Result<()>);

/// Tests that boot VMs on the KVM of the system they run on.
const VM_TESTS: &[&[Test]] = &[
    exec::TESTS,
    boot::TESTS,
    disk::TESTS,
    network::TESTS,
    faults::TESTS,
    spawn_budget::TESTS,
    fork::state::TESTS,
    fork::busy::TESTS,
    fork::deaths::TESTS,
    fork::damage::TESTS,
];
/// The same, but each alone: they take all there is, or would take for theirs what others leave.
const LONE_TESTS: &[&[Test]] = &[fork::identity::TESTS, fork::deaths::LONE_TESTS, fork::leaks::TESTS];
/// Tests of the command line and the emulated host as a user has them before him.
const USER_TESTS: &[&[Test]] = &[cli::TESTS, machine_life::TESTS];

/// How many of the slowest tests are named at the end.
const SLOWEST: usize = 8;

#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
fn main() -> ExitCode {
    // As PID 1 of a guest this program is the agent that never answers; `faults` boots it so.
    if std::process::id() == 1 {
        loop {
            std::thread::park();
        }
    }
    match run(&Arguments::from_args()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(101),
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what belongs here; true when all of it passed.
fn run(arguments: &Arguments) -> Result<bool> {
    if let Some(host) = Host::inside()? {
        return Ok(run_vm_tests(arguments, &host));
    }
    let host = Host::outside()?;
    if host.has_kvm() {
        let vm = run_vm_tests(arguments, &host);
        return Ok(conclude(arguments, &host, USER_TESTS) && vm);
    }
    let vm = inside::run(&host)?;
    Ok(conclude(arguments, &host, USER_TESTS) && vm)
}

/// Runs what boots VMs right here; true when all of it passed.
fn run_vm_tests(arguments: &Arguments, host: &Host) -> bool {
    let together = conclude(arguments, host, VM_TESTS);
    let alone = conclude(&Arguments { test_threads: Some(1), ..arguments.clone() }, host, LONE_TESTS);
    host.tear_down();
    together && alone
}

/// Runs a test as often as the host is worth, and says so when once was not enough.
#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
fn try_test(name: &str, test: fn(&Host) -> Result<()>, host: &Host) -> Result<()> {
    for _ in 1..host.tries() {
        match test(host) {
            Ok(()) => return Ok(()),
            Err(error) => eprintln!("again: {name}, which failed: {error:#}"),
        }
    }
    test(host)
}

#[expect(clippy::print_stdout, reason = "a test program talks to whoever runs it")]
fn conclude(arguments: &Arguments, host: &Host, groups: &[&'static [Test]]) -> bool {
    let times: Arc<Mutex<Vec<(Duration, &str)>>> = Arc::default();
    let trials = groups.iter().flat_map(|group| group.iter()).map(|(name, test)| {
        let (host, test, times) = (host.clone(), *test, Arc::clone(&times));
        Trial::test(*name, move || {
            let begun = Instant::now();
            let done = try_test(name, test, &host).map_err(|error| format!("{error:#}").into());
            times.lock().unwrap_or_else(PoisonError::into_inner).push((begun.elapsed(), name));
            done
        })
    });
    let conclusion = libtest_mimic::run(arguments, trials.collect());
    let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
    times.sort_unstable();
    for (time, name) in times.iter().rev().take(SLOWEST) {
        println!("slow: {:6.1} s  {name}", time.as_secs_f32());
    }
    !conclusion.has_failed()
}
