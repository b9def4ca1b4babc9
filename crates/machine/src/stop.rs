//! Ends the machine: politely, then by its monitor, then by force. Each step has its time, so there is always an end.

use std::time::Duration;

use types::Dirs;
use types::progress::{Progress, Silent, Stage};

use crate::layout::{Layout, remove_dir};
use crate::lock::Lock;
use crate::process::Process;
use crate::state::{Phase, StateV1};
use crate::{Machine, MachineError, qemu};

/// How long the agent may take to agree.
const AGREE: Duration = Duration::from_secs(10);
/// How long the machine may take to write everything down and power itself off.
const POWEROFF: Duration = Duration::from_secs(60);
/// How long QEMU may take to end when its monitor says so, or when killed.
const QUIT: Duration = Duration::from_secs(10);

/// Stops the machine; no error when none runs. Its data stays.
///
/// # Errors
/// When QEMU cannot be ended, or the files of its run not be removed.
pub fn stop(dirs: &Dirs, progress: &dyn Progress) -> Result<(), MachineError> {
    let layout = Layout::new(dirs);
    if !layout.run.exists() {
        return Ok(());
    }
    let _lock = Lock::acquire(&layout, progress)?;
    end_any(&layout, progress)
}

/// Stops the machine and removes everything of it, its data too.
///
/// # Errors
/// As [`stop`], and when something cannot be removed.
pub fn rm(dirs: &Dirs) -> Result<(), MachineError> {
    let layout = Layout::new(dirs);
    let _lock = Lock::acquire(&layout, &Silent)?;
    end_any(&layout, &Silent)?;
    remove_dir(&layout.data)?;
    remove_dir(&layout.cache)?;
    layout.remove_run()
}

/// Ends whatever runs, known or not, and removes the files of its run. The caller holds the lock.
pub(crate) fn end_any(layout: &Layout, progress: &dyn Progress) -> Result<(), MachineError> {
    let known = match StateV1::read(layout) {
        Err(error @ MachineError::DamagedState { .. }) => {
            log::warn!("{error}");
            None
        }
        state => state?,
    };
    let machine = known.map(|state| Machine { layout: layout.clone(), state });
    let process = machine.as_ref().map(Machine::process).transpose()?.flatten();
    match machine.zip(process) {
        Some((machine, process)) => end(&machine, &process, progress)?,
        None => end_unknown(layout)?,
    }
    layout.sweep()
}

fn end(machine: &Machine, process: &Process, progress: &dyn Progress) -> Result<(), MachineError> {
    let stage = progress.stage("stopping the machine", None);
    let ended = |patience| process.wait(patience).map_err(MachineError::process("wait for QEMU"));
    if machine.state.phase == Phase::Ready && agreed(machine, stage.as_ref()) && ended(POWEROFF)? {
        return Ok(());
    }
    stage.note("it does not power itself off; its emulator is ended");
    match qemu::quit(&machine.layout) {
        Ok(true) if ended(QUIT)? => return Ok(()),
        Ok(_) => {}
        Err(error) => log::warn!("QEMU's monitor: {error}"),
    }
    process.kill().map_err(MachineError::process("kill QEMU"))?;
    if ended(QUIT)? { Ok(()) } else { Err(MachineError::Unkillable { pid: process.identity().pid }) }
}

/// Asks the agent to power the machine off.
fn agreed(machine: &Machine, stage: &dyn Stage) -> bool {
    let asked = machine.connect_within(AGREE).and_then(|(mut connection, _)| Ok(connection.poweroff()?));
    match asked {
        Ok(()) => true,
        Err(error) => {
            stage.note(&format!("its agent does not agree: {error}"));
            false
        }
    }
}

/// Nothing is known of a QEMU; one may run all the same if its state was lost. Its monitor tells.
fn end_unknown(layout: &Layout) -> Result<(), MachineError> {
    match qemu::quit(layout) {
        Ok(true) => log::warn!("a QEMU that nothing was known of was ended"),
        Ok(false) => {}
        Err(source) => return Err(MachineError::Io { doing: "end the QEMU behind", path: layout.qmp(), source }),
    }
    Ok(())
}
