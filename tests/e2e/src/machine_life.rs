//! The emulated host's life: started twice, killed, started again, stopped, removed.

use std::path::Path;
use std::thread;

use anyhow::{Context, Result, ensure};
use engine::Program;
use machine::{Machine, Status};
use rustix::process::{Pid, Signal, kill_process};
use types::Dirs;
use types::progress::Silent;

use crate::Test;
use crate::host::{Host, shell};

pub(crate) const TESTS: &[Test] = &[("machine::a_life_of_the_emulated_host", a_life_of_the_emulated_host)];

fn sh(machine: &Machine, script: &str) -> Result<String> {
    let output = machine.output(&shell(script), &[], 1 << 20)?;
    ensure!(output.status.shell_code() == 0, "`{script}`: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

fn running_pid(dirs: &Dirs) -> Result<i32> {
    match machine::status(dirs)? {
        Status::Running(running) => Ok(running.pid),
        other => anyhow::bail!("the emulated host is {other:?}"),
    }
}

/// A machine of the test's own: caches are shared, disk and sockets are not.
fn a_life_of_the_emulated_host(host: &Host) -> Result<()> {
    let home = tempfile::tempdir()?;
    let dirs = Dirs { cache: host.dirs.cache.clone(), ..Dirs::under(home.path()) };
    let agent = Program::Agent.find()?;
    ensure!(matches!(machine::status(&dirs)?, Status::Absent), "something is there");

    // Two at once do not clash: both get the same machine.
    let starters: Vec<_> = (0..2)
        .map(|_| {
            let (dirs, agent) = (dirs.clone(), agent.clone());
            thread::spawn(move || machine::start(&dirs, &agent, &Silent))
        })
        .collect();
    for starter in starters {
        let machine = starter.join().ok().context("a starter died")??;
        ensure!(sh(&machine, "test -c /dev/kvm && echo kvm")? == "kvm", "no KVM inside");
    }
    let first = running_pid(&dirs)?;
    let machine = machine::start(&dirs, &agent, &Silent)?;
    ensure!(running_pid(&dirs)? == first);
    sh(&machine, "echo kept > /var/lib/forkd/note && sync")?;

    // Killed, it is started again with its data.
    kill_process(Pid::from_raw(first).context("a process id")?, Signal::KILL)?;
    let machine = machine::start(&dirs, &agent, &Silent)?;
    ensure!(running_pid(&dirs)? != first, "the dead one was taken for alive");
    ensure!(sh(&machine, "cat /var/lib/forkd/note")? == "kept");

    machine::stop(&dirs, &Silent)?;
    ensure!(matches!(machine::status(&dirs)?, Status::Stopped { .. }), "{:?}", machine::status(&dirs)?);
    machine::rm(&dirs)?;
    ensure!(matches!(machine::status(&dirs)?, Status::Absent), "{:?}", machine::status(&dirs)?);
    ensure!(!Path::new(&dirs.data).join("machine").exists(), "its disk is still there");
    Ok(())
}
