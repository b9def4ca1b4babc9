//! VM tests: each boots real VMs and reads like a script. `make vmtest` runs them; a word filters.
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
mod branch;
mod cli;
mod clients;
mod command_line;
mod container;
mod daemon;
mod disk;
mod egress;
mod exec;
mod faults;
mod fork;
mod host;
mod inhabit;
mod inside;
mod machine_life;
mod network;
mod passed;
mod small_disk;
mod spawn_budget;
mod store_verbs;
mod tiny;
mod world;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Trial};

use crate::host::Host;
use crate::passed::Passed;

/// A test: what it is called, and what it does with the host.
type Test = (&'static str, fn(&Host) -> Result<()>);

/// Tests that boot VMs on the KVM of the system they run on.
const VM_TESTS: &[&[Test]] = &[
    exec::TESTS,
    boot::TESTS,
    disk::TESTS,
    container::TESTS,
    network::TESTS,
    egress::TESTS,
    faults::TESTS,
    spawn_budget::TESTS,
    fork::state::TESTS,
    fork::busy::TESTS,
    fork::deaths::TESTS,
    fork::damage::TESTS,
    fork::stored::TESTS,
    branch::source::TESTS,
    inhabit::TESTS,
    branch::keeping::TESTS,
    branch::full::TESTS,
    branch::chain::TESTS,
    branch::packs::TESTS,
];
/// The same, but each alone: they take all there is, or would take for theirs what others leave.
const LONE_TESTS: &[&[Test]] = &[
    fork::identity::TESTS,
    fork::deaths::LONE_TESTS,
    fork::limits::TESTS,
    branch::torn::TESTS,
    daemon::TESTS,
    fork::leaks::TESTS,
];
/// Tests of the command line and the emulated host as a user has them before him.
const USER_TESTS: &[&[Test]] =
    &[cli::TESTS, machine_life::TESTS, clients::TESTS, command_line::TESTS, store_verbs::TESTS];

/// The word that has images built, and no test run.
const PREPARE: &str = "prepare";

/// No test of ours takes so long, also on a machine that is slow and busy.
const TEST_LIMIT: Duration = Duration::from_secs(360);
/// The variable that says otherwise, in seconds.
const LIMIT: &str = "FORKD_E2E_LIMIT";
/// How many of the slowest tests are named at the end.
const SLOWEST: usize = 8;
/// How much of a failure's cause is repeated there; the whole of it was said when the test failed.
const WHY_CHARS: usize = 400;

/// A test that failed, and why.
struct Failure {
    name: &'static str,
    why: String,
}

#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
fn main() -> ExitCode {
    // As PID 1 of a guest this program is the agent that never answers; `faults` boots it so.
    if std::process::id() == 1 {
        loop {
            std::thread::park();
        }
    }
    let done = match std::env::args().nth(1).as_deref() {
        Some(PREPARE) => Host::prepare().map(|()| true),
        _ => run(&Arguments::from_args()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(101),
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what belongs here; true when all of it passed. What failed is said again as the last thing, where one looks.
#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
fn run(arguments: &Arguments) -> Result<bool> {
    if let Some(host) = Host::inside()? {
        return Ok(name_failures(&run_vm_tests(arguments, &host)));
    }
    let host = Host::outside()?;
    let passed = Passed::of(&host)?;
    let all = arguments.filter.is_none() && arguments.skip.is_empty() && !arguments.list;
    if all && passed.already() {
        eprintln!("e2e: all VM tests have passed with these very binaries and images; CI=1 runs them again");
        return Ok(true);
    }
    let mut failures = conclude(arguments, &host, USER_TESTS);
    // It would take time from what is measured there.
    host.end_daemon()?;
    let inside = host.has_kvm() || inside::run(&host)?;
    if host.has_kvm() {
        failures.extend(run_vm_tests(arguments, &host));
    }
    let good = name_failures(&failures) && inside;
    if good && all {
        passed.remember()?;
    }
    Ok(good)
}

/// Runs what boots VMs right here.
fn run_vm_tests(arguments: &Arguments, host: &Host) -> Vec<Failure> {
    let mut failures = conclude(arguments, host, VM_TESTS);
    failures.extend(conclude(&Arguments { test_threads: Some(1), ..arguments.clone() }, host, LONE_TESTS));
    host.tear_down();
    failures
}

/// Says what failed, if anything; true when nothing did.
#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
fn name_failures(failures: &[Failure]) -> bool {
    for Failure { name, why } in failures {
        eprintln!("failed: {name}: {}", why.chars().take(WHY_CHARS).collect::<String>());
    }
    failures.is_empty()
}

/// Runs a test as often as the host is worth, and says so when once was not enough.
#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
fn try_test(name: &str, test: fn(&Host) -> Result<()>, host: &Host) -> Result<()> {
    for _ in 1..host.tries() {
        match in_time(test, host) {
            Ok(()) => return Ok(()),
            Err(error) => eprintln!("again: {name}, which failed: {error:#}"),
        }
    }
    in_time(test, host)
}

/// Runs a test that may hang: then it has failed, and is left behind.
fn in_time(test: fn(&Host) -> Result<()>, host: &Host) -> Result<()> {
    let (done, result) = std::sync::mpsc::channel();
    let host = host.clone();
    std::thread::Builder::new().spawn(move || done.send(test(&host)))?;
    let limit = limit();
    result.recv_timeout(limit).with_context(|| format!("it hangs for {} s", limit.as_secs()))?
}

/// How long a test may take: somebody who asks one to do more knows how much longer it takes.
fn limit() -> Duration {
    let asked = std::env::var(LIMIT).ok().and_then(|seconds| seconds.parse().ok());
    asked.map_or(TEST_LIMIT, Duration::from_secs)
}

/// Runs these tests, tells which were slow, and returns those that failed.
#[expect(clippy::print_stdout, reason = "a test program talks to whoever runs it")]
fn conclude(arguments: &Arguments, host: &Host, groups: &[&'static [Test]]) -> Vec<Failure> {
    let times: Arc<Mutex<Vec<(Duration, &str)>>> = Arc::default();
    let failures: Arc<Mutex<Vec<Failure>>> = Arc::default();
    let trials = groups.iter().flat_map(|group| group.iter()).map(|(name, test)| {
        let (host, test, times, failures) = (host.clone(), *test, Arc::clone(&times), Arc::clone(&failures));
        Trial::test(*name, move || {
            let begun = Instant::now();
            let done = try_test(name, test, &host).map_err(|error| format!("{error:#}"));
            times.lock().unwrap_or_else(PoisonError::into_inner).push((begun.elapsed(), name));
            if let Err(why) = &done {
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(Failure { name, why: why.clone() });
            }
            Ok(done?)
        })
    });
    let conclusion = libtest_mimic::run(arguments, trials.collect());
    let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
    times.sort_unstable();
    for (time, name) in times.iter().rev().take(SLOWEST) {
        println!("slow: {:6.1} s  {name}", time.as_secs_f32());
    }
    let mut failures = std::mem::take(&mut *failures.lock().unwrap_or_else(PoisonError::into_inner));
    if conclusion.has_failed() && failures.is_empty() {
        failures.push(Failure { name: "a test", why: "it is named above".into() });
    }
    failures
}
