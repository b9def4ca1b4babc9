//! Work with a guest that may keep a request waiting: when the time is up or it is called off, the VM is stopped, and that
//! breaks every connection.

use std::thread;
use std::time::Instant;

use crate::cancel::Cancel;
use crate::process::ProcessError;
use crate::vm::Vm;

/// Does the work, and sees to it that it ends.
pub(crate) fn watched<T>(
    vm: &Vm,
    until: Instant,
    cancel: Option<&Cancel>,
    work: impl FnOnce() -> T,
) -> Result<T, ProcessError> {
    let failed = |source| ProcessError::Wait { source };
    let done = Cancel::new().map_err(failed)?;
    thread::scope(|scope| {
        let watchdog = thread::Builder::new().name("watchdog".into());
        watchdog.spawn_scoped(scope, || watch(vm, &done, cancel, until)).map_err(failed)?;
        let result = work();
        done.cancel();
        Ok(result)
    })
}

/// Whether it was called off.
pub(crate) fn called_off(cancel: Option<&Cancel>) -> bool {
    matches!(Cancel::first(&[cancel], Instant::now()), Ok(Some(_)))
}

fn watch(vm: &Vm, done: &Cancel, cancel: Option<&Cancel>, until: Instant) {
    if matches!(Cancel::first(&[Some(done), cancel], until), Ok(Some(0))) {
        return;
    }
    if let Err(error) = vm.stopper().stop() {
        log::debug!("the VM is gone already: {error}");
    }
}
