//! VM tests: each boots real VMs and reads like a script. `make vmtest` runs them; a word filters. `e2e long` runs those that
//! take long instead, and `e2e recipes` tries the recipes that come with forkd.
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

mod behind;
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
mod finding;
mod fork;
mod from_image;
mod host;
mod hostile;
mod indexes;
mod inhabit;
mod inside;
mod internet;
mod machine_life;
mod native;
mod neighbours;
mod network;
mod packages;
mod passed;
mod recipe_verbs;
mod recipes;
mod serving;
mod small_disk;
mod spawn_budget;
mod store_verbs;
mod tar;
mod tiny;
mod warmth;
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

/// Tests by where they run, and how.
struct Suite {
    /// They need no VM: what they ask for is what stands in for VMs.
    plain: &'static [&'static [Test]],
    /// Of the command line and the emulated host as a user has them before him.
    user: &'static [&'static [Test]],
    /// Of recipes, in the order in which their images are built, and each alone.
    recipes: &'static [Test],
    /// They boot VMs on the KVM of the system they run on.
    vms: &'static [&'static [Test]],
    /// The same, but each alone: they take all there is, or would take for theirs what others leave.
    lone: &'static [&'static [Test]],
    /// Of VMs in which there need not be Linux: they run on more KVMs, and in a fraction of the time.
    native: &'static [&'static [Test]],
    /// The same, but each alone.
    lone_native: &'static [&'static [Test]],
}

/// What a plain run is.
const USUAL: Suite = Suite {
    plain: &[command_line::TESTS, store_verbs::TESTS],
    user: &[cli::TESTS, recipe_verbs::TESTS, machine_life::TESTS],
    recipes: &[],
    vms: &[
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
        fork::giving::TESTS,
        branch::source::TESTS,
        inhabit::TESTS,
        branch::chain::TESTS,
    ],
    lone: &[fork::identity::TESTS, fork::limits::TESTS, fork::jail::TESTS, daemon::TESTS, fork::leaks::TESTS],
    native: &[
        branch::packs::NATIVE_TESTS,
        branch::chain::NATIVE_TESTS,
        branch::keeping::NATIVE_TESTS,
        branch::full::NATIVE_TESTS,
        fork::damage::NATIVE_TESTS,
        fork::deaths::NATIVE_TESTS,
        fork::stored::NATIVE_TESTS,
        fork::shared::NATIVE_TESTS,
        fork::wide::NATIVE_TESTS,
        native::given::TESTS,
        native::restart::TESTS,
        faults::NATIVE_TESTS,
    ],
    lone_native: &[fork::deaths::LONE_NATIVE_TESTS, branch::torn::NATIVE_TESTS, branch::stall::NATIVE_TESTS],
};

/// What takes long: clients that others publish, requests that a program makes up, images, hostile ones too, package
/// managers, sandboxes with all they can have behind the daemon, noisy neighbours, load, and crashes.
const LONG: Suite = Suite {
    plain: &[clients::PLAIN_TESTS],
    user: &[clients::TESTS, from_image::TESTS, indexes::TESTS, hostile::TESTS],
    recipes: warmth::SOME,
    vms: &[recipes::TESTS, packages::TESTS],
    lone: &[behind::TESTS, neighbours::TESTS, fork::identity::LONG_TESTS, branch::torn::TESTS],
    native: &[],
    lone_native: &[native::load::TESTS, native::networks::TESTS, native::matrix::TESTS],
};

/// The word that has images built, and no test run.
const PREPARE: &str = "prepare";

/// The word that has what takes long run, and nothing else; a filter may follow.
const TAKES_LONG: &str = "long";

/// The word that has the recipes tried, and nothing else; a filter may follow.
const RECIPES: &str = "recipes";

/// No test of ours takes so long, also on a machine that is slow and busy.
const TEST_LIMIT: Duration = Duration::from_secs(360);
/// Nor does one of a recipe, the building of its image included.
const RECIPE_LIMIT: Duration = Duration::from_secs(1200);
/// The variable that says otherwise, in seconds.
const LIMIT: &str = "FORKD_E2E_LIMIT";
/// How many of the slowest tests are named at the end.
const SLOWEST: usize = 8;
/// How much of a failure's cause is repeated there; the whole of it was said when the test failed.
const WHY_CHARS: usize = 400;

/// How long a test may take, and how often it is tried.
#[derive(Clone, Copy)]
struct Chances {
    limit: Duration,
    tries: usize,
}

/// What needs no VM has no excuse.
const ONE_CHANCE: Chances = Chances { limit: TEST_LIMIT, tries: 1 };

impl Chances {
    /// As many as that host is worth.
    fn on(host: &Host) -> Self {
        Self { limit: TEST_LIMIT, tries: host.tries() }
    }
}

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
        Some(RECIPES) => run_recipes(&arguments_behind_a_word()),
        Some(TAKES_LONG) => run(&arguments_behind_a_word(), &LONG),
        _ => run_usual(&Arguments::from_args()),
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

fn arguments_behind_a_word() -> Arguments {
    Arguments::from_iter(std::env::args().skip(1))
}

/// Runs what is usual, unless all of it has passed before; true when all of it passed.
#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
fn run_usual(arguments: &Arguments) -> Result<bool> {
    let all = arguments.filter.is_none() && arguments.skip.is_empty() && !arguments.list;
    if !all || Host::inside()?.is_some() {
        return run(arguments, &USUAL);
    }
    let passed = Passed::of(&Host::outside()?)?;
    if passed.already() {
        eprintln!("e2e: all VM tests have passed with these very binaries and images; CI=1 runs them again");
        return Ok(true);
    }
    let good = run(arguments, &USUAL)?;
    if good {
        passed.remember()?;
    }
    Ok(good)
}

/// Runs what belongs here; true when all of it passed. What failed is said again as the last thing, where one looks.
fn run(arguments: &Arguments, suite: &Suite) -> Result<bool> {
    if let Some(host) = Host::inside()? {
        let mut failures = run_vm_tests(arguments, &host, suite);
        if inside::has_native_tests() {
            failures.extend(run_native_tests(arguments, &host.native()?.context("a KVM")?, suite));
        }
        return Ok(name_failures(&failures));
    }
    let host = Host::outside()?;
    // Built meanwhile: that waits for downloads more than for anything else.
    build_recipes(arguments, &host, suite.recipes);
    // Beside each other: what needs no VM is in nobody's way.
    let (plain, mut failures) = std::thread::scope(|scope| {
        let plain = scope.spawn(|| conclude(arguments, &host, suite.plain, ONE_CHANCE));
        let user = conclude(arguments, &host, suite.user, Chances::on(&host));
        (plain.join(), user)
    });
    failures.extend(plain.map_err(|_| anyhow::anyhow!("the tests without VMs panicked"))?);
    failures.extend(try_recipes(arguments, &host, suite.recipes));
    // It would take time from what is measured there.
    host.end_daemon()?;
    let native = host.native()?;
    let inside_groups: &[_] = match native {
        Some(_) => &[suite.vms, suite.lone],
        None => &[suite.vms, suite.lone, suite.native, suite.lone_native],
    };
    let inside = host.has_kvm() || !wants(arguments, inside_groups) || inside::run(&host, native.is_none())?;
    if host.has_kvm() {
        failures.extend(run_vm_tests(arguments, &host, suite));
    }
    if let Some(native) = native {
        failures.extend(run_native_tests(arguments, &native, suite));
    }
    Ok(name_failures(&failures) && inside)
}

/// Tries all recipes; true when all passed.
fn run_recipes(arguments: &Arguments) -> Result<bool> {
    let host = Host::outside()?;
    build_recipes(arguments, &host, warmth::ALL);
    Ok(name_failures(&try_recipes(arguments, &host, warmth::ALL)))
}

/// Begins to build the images of those of these recipes that are asked for.
fn build_recipes(arguments: &Arguments, host: &Host, recipes: &'static [Test]) {
    let asked = |name: &str| arguments.filter.as_deref().is_none_or(|filter| name.contains(filter));
    warmth::build_images(&host.dirs, recipes, asked);
}

/// Tries these recipes, one at a time.
fn try_recipes(arguments: &Arguments, host: &Host, recipes: &'static [Test]) -> Vec<Failure> {
    if !wants(arguments, &[&[recipes]]) {
        return Vec::new();
    }
    let chances = Chances { limit: RECIPE_LIMIT, ..Chances::on(host) };
    let failures = conclude(&alone(arguments), host, &[recipes], chances);
    warmth::tear_down();
    failures
}

/// Runs what boots VMs right here.
fn run_vm_tests(arguments: &Arguments, host: &Host, suite: &Suite) -> Vec<Failure> {
    let mut failures = conclude(arguments, host, suite.vms, Chances::on(host));
    failures.extend(conclude(&alone(arguments), host, suite.lone, Chances::on(host)));
    host.tear_down();
    failures
}

/// Runs what boots VMs with the native guest.
fn run_native_tests(arguments: &Arguments, native: &Host, suite: &Suite) -> Vec<Failure> {
    let mut failures = conclude(arguments, native, suite.native, Chances::on(native));
    failures.extend(conclude(&alone(arguments), native, suite.lone_native, Chances::on(native)));
    native.tear_down();
    failures
}

/// Whether any of these tests may be run: an emulated host takes a while to start.
fn wants(arguments: &Arguments, groups: &[&[&[Test]]]) -> bool {
    let filter = arguments.filter.as_deref().unwrap_or_default();
    let wanted = |name: &str| name.contains(filter) && !arguments.skip.iter().any(|skip| name.contains(skip.as_str()));
    groups.iter().copied().flatten().copied().flatten().any(|(name, _)| wanted(name))
}

/// One test at a time.
fn alone(arguments: &Arguments) -> Arguments {
    Arguments { test_threads: Some(1), ..arguments.clone() }
}

/// Says what failed, if anything; true when nothing did.
#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
fn name_failures(failures: &[Failure]) -> bool {
    for Failure { name, why } in failures {
        eprintln!("failed: {name}: {}", why.chars().take(WHY_CHARS).collect::<String>());
    }
    failures.is_empty()
}

/// Runs a test as often as it may be tried, and says so when once was not enough. What is found once is not tried again.
#[expect(clippy::print_stderr, reason = "a test program talks to whoever runs it")]
fn try_test(name: &str, test: fn(&Host) -> Result<()>, host: &Host, chances: Chances) -> Result<()> {
    let mut tried = in_time(test, host, chances.limit);
    for _ in 1..chances.tries {
        match &tried {
            Err(error) if !finding::is_one(error) => eprintln!("again: {name}, which failed: {error:#}"),
            _ => break,
        }
        tried = in_time(test, host, chances.limit);
    }
    tried.inspect_err(|error| {
        if finding::is_one(error) {
            finding::tell(name, error);
        }
    })
}

/// Runs a test that may hang: then it has failed, and is left behind.
fn in_time(test: fn(&Host) -> Result<()>, host: &Host, limit: Duration) -> Result<()> {
    let (done, result) = std::sync::mpsc::channel();
    let host = host.clone();
    std::thread::Builder::new().spawn(move || done.send(test(&host)))?;
    let limit = asked_limit().unwrap_or(limit);
    result.recv_timeout(limit).with_context(|| format!("it hangs for {} s", limit.as_secs()))?
}

/// How long a test may take if somebody says so: who asks one to do more knows how much longer it takes.
fn asked_limit() -> Option<Duration> {
    let asked = std::env::var(LIMIT).ok().and_then(|seconds| seconds.parse().ok());
    asked.map(Duration::from_secs)
}

/// Runs these tests, tells which were slow, and returns those that failed.
#[expect(clippy::print_stdout, reason = "a test program talks to whoever runs it")]
fn conclude(arguments: &Arguments, host: &Host, groups: &[&'static [Test]], chances: Chances) -> Vec<Failure> {
    let times: Arc<Mutex<Vec<(Duration, &str)>>> = Arc::default();
    let failures: Arc<Mutex<Vec<Failure>>> = Arc::default();
    let trials = groups.iter().flat_map(|group| group.iter()).map(|(name, test)| {
        let (host, test, times, failures) = (host.clone(), *test, Arc::clone(&times), Arc::clone(&failures));
        Trial::test(*name, move || {
            let begun = Instant::now();
            let done = try_test(name, test, &host, chances).map_err(|error| format!("{error:#}"));
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
