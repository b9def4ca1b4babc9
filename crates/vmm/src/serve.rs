//! One VM from its `Boot` to its end: the process's only loop, which owns the devices' host side and the control socket.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use proto::control::{ControlError, ControlSocket, FromVmm, Lifetime, Outcome, RefusalCode, ToVmm, VmSpec};

use crate::events::{Event, Events};
use crate::ports::Ending;
use crate::reactor::{Reactor, Source};
use crate::vm::Vm;

/// Why the process cannot serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The control socket does not work.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The first packet was something else.
    #[error("the engine closed the connection, or said something else, before asking for a VM")]
    NoBoot,
    /// The loop cannot wait.
    #[error("the event loop failed: {source}")]
    Loop {
        /// What the system says.
        #[from]
        source: io::Error,
    },
}

/// Waits for a specification, runs the VM, reports its end.
pub(crate) fn serve(control: &ControlSocket) -> Result<(), ServeError> {
    let Some((ToVmm::Boot(spec), taps)) = control.recv()? else { return Err(ServeError::NoBoot) };
    match Running::start(&spec, taps, control)? {
        Some(mut running) => {
            let outcome = running.run(control, spec.lifetime)?;
            log::info!("ended: {outcome:?}");
            report(control, &FromVmm::Ended { outcome });
        }
        None => log::info!("refused"),
    }
    Ok(())
}

/// Tells the engine; when it is gone there is nobody left to tell, and the log has it.
fn report(control: &ControlSocket, event: &FromVmm) {
    if let Err(error) = control.send(event, &[]) {
        log::info!("the engine is gone ({error}) and was not told {event:?}");
    }
}

#[derive(Debug)]
struct Running {
    vm: Vm,
    reactor: Arc<Reactor>,
    events: Arc<Events>,
}

impl Running {
    /// Builds the VM; `None` when it was refused and the engine told so.
    fn start(spec: &VmSpec, taps: Vec<OwnedFd>, control: &ControlSocket) -> Result<Option<Self>, ServeError> {
        let begun = Instant::now();
        let (reactor, events) = (Reactor::new()?, Arc::new(Events::new()?));
        reactor.watch(control, Source::Control)?;
        reactor.watch(events.wake(), Source::Events)?;
        match Vm::start(spec, taps, &reactor, &events) {
            Ok(vm) => {
                let setup_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                report(control, &FromVmm::Booted { setup_us });
                Ok(Some(Self { vm, reactor, events }))
            }
            Err(error) => {
                let code: RefusalCode = error.code();
                report(control, &FromVmm::Refused { code, message: error.to_string() });
                Ok(None)
            }
        }
    }

    fn run(&mut self, control: &ControlSocket, lifetime: Lifetime) -> Result<Outcome, ServeError> {
        let mut ready = Vec::new();
        let mut engine_listens = true;
        loop {
            self.reactor.wait(&mut ready)?;
            for (source, readiness) in &ready {
                match *source {
                    Source::Queue { device, queue } => self.vm.queue_notified(device, queue),
                    Source::Host { device, token } => self.vm.host_ready(device, token, *readiness),
                    Source::Events => {
                        if let Some(event) = self.events.first() {
                            return Ok(self.outcome(event));
                        }
                    }
                    Source::Control if engine_listens => match self.obey(control)? {
                        Obeyed::Stop => return Ok(Outcome::Stopped),
                        Obeyed::EngineGone if lifetime == Lifetime::Connection => return Ok(Outcome::Stopped),
                        Obeyed::EngineGone => {
                            engine_listens = false;
                            self.reactor.forget(control)?;
                        }
                        Obeyed::Done => {}
                    },
                    Source::Control => {}
                }
            }
        }
    }

    fn obey(&self, control: &ControlSocket) -> Result<Obeyed, ServeError> {
        match control.recv()? {
            None => Ok(Obeyed::EngineGone),
            Some((ToVmm::Stop, _)) => Ok(Obeyed::Stop),
            Some((ToVmm::PowerButton, _)) => {
                self.vm.press_power_button()?;
                Ok(Obeyed::Done)
            }
            Some((ToVmm::Boot(_) | ToVmm::Load(_) | ToVmm::Spawn { .. } | ToVmm::Freeze, _)) => {
                log::warn!("a word that is not for a running VM was ignored");
                Ok(Obeyed::Done)
            }
        }
    }

    /// A restart asked for after a panic is the panic's doing.
    fn outcome(&self, event: Event) -> Outcome {
        match event {
            Event::Ended(Ending::Shutdown) => Outcome::Shutdown,
            Event::Ended(Ending::Panic) => Outcome::Panic { reason: self.vm.panic_reason() },
            Event::Ended(Ending::Reboot) => match self.vm.panic_reason() {
                Some(reason) => Outcome::Panic { reason: Some(reason) },
                None => Outcome::Reboot,
            },
            Event::Fault { message } => Outcome::Fault { message },
        }
    }
}

/// What came of a word from the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obeyed {
    Done,
    Stop,
    EngineGone,
}
