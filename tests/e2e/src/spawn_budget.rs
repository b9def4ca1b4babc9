//! What a spawn may cost in system calls: a bound that no noise moves. Whoever makes the path longer has to say so here.
//!
//! A tracer counts every system call of a template and of the children it forks, from the request until each child's
//! vCPU enters the guest and its main thread waits for something to do. The VM has what a sandbox has: a disk, a network
//! card, vsock and rng.

mod sys;
mod trace;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;

use anyhow::{Context, Result, ensure};
use bench::tiny::{Brood, Logging, Shape, Template, freeze};
use engine::{Program, Tap};

use crate::Test;
use crate::host::Host;

pub(crate) const TESTS: &[Test] =
    &[("spawn_budget::a_spawn_keeps_to_its_system_calls", a_spawn_keeps_to_its_system_calls)];

/// For each child. Found were 121: 56 for five devices with ten queues, 24 for the VM and its vCPU's state, 10 for sockets
/// and logs, 15 for the jail, 16 for the vCPU's thread. The rest is for a KVM whose new vCPUs differ more from saved ones,
/// and for the C library's heap, which grows when it must.
const CHILD_BUDGET: usize = 128;
/// For each request, in the template. Found were 8: hear it, see that no other thread is there, answer, wait again.
const REQUEST_BUDGET: usize = 10;
/// For each child, in the template: fork, and close what was handed over for it (two sockets, console, log, state, the top
/// of its disk, its tap).
const FORK_BUDGET: usize = 8;
const CHILDREN: usize = 3;

fn a_spawn_keeps_to_its_system_calls(_host: &Host) -> Result<()> {
    let vmm = Program::Vmm.find()?;
    let dir = tempfile::tempdir()?;
    let shape = Shape { memory: "128M".parse()?, disks: 1, net: true, balloon: true };
    let tap = || -> Result<OwnedFd> { Ok(Tap::create()?.fd) };
    let frozen = freeze(&vmm, dir.path(), shape, Some(tap()?.as_fd())).context("freezing")?;
    let template = Template::start(&vmm, dir.path(), &frozen, Logging::Usual).context("the template")?;
    let taps = (0..CHILDREN).map(|_| tap()).collect::<Result<Vec<_>>>()?;
    let (attached, ready) = mpsc::channel();
    let traced = std::thread::scope(|scope| {
        let pid = template.pid();
        let tracer = scope.spawn(move || trace::spawn(pid, CHILDREN, attached));
        // Without a tracer there is an error to be told below.
        let brood = ready.recv().map(|()| Brood::spawn(&template, &dir.path().join("brood"), CHILDREN, &taps));
        let traced = tracer.join().map_err(|_| anyhow::anyhow!("the tracer panicked"))?;
        let brood = brood.context("the tracer could not begin");
        let traced = traced?;
        brood??.end()?;
        anyhow::Ok(traced)
    })?;
    ensure!(traced.executed.is_empty(), "a spawn executes programs: {:?}", traced.executed);
    let allowed = REQUEST_BUDGET + FORK_BUDGET * CHILDREN;
    let found = traced.template.len();
    ensure!(found <= allowed, "the template made {found} calls of {allowed}: {}", trace::names(&traced.template));
    for calls in traced.children.values() {
        let found = calls.len();
        ensure!(found <= CHILD_BUDGET, "a child made {found} calls of {CHILD_BUDGET}: {}", trace::names(calls));
    }
    Ok(())
}
