//! One VM from its beginning to its end: the process's only loop, which owns the devices' host side and everybody who
//! may give orders.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use proto::control::{ControlError, ControlSocket, FromVmm, Lifetime, Mark, Outcome, RefusalCode, ToVmm, VmSpec};

use virtio::block::Quota;

use crate::branch::{self, BranchError, Branched, Seed};
use crate::controls::{Controls, Heard};
use crate::events::{Event, Events};
use crate::jail::JailError;
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
    /// A copy of the VM could not become a template.
    #[error(transparent)]
    Branch(#[from] BranchError),
    /// The process would not be confined.
    #[error(transparent)]
    Jail(#[from] JailError),
}

/// Waits for a specification, runs the VM, reports its end.
pub(crate) fn serve(control: ControlSocket) -> Result<(), ServeError> {
    let Some((ToVmm::Boot(spec), mut given)) = control.recv()? else { return Err(ServeError::NoBoot) };
    let (reactor, events) = (Reactor::new()?, Arc::new(Events::new()?));
    reactor.watch(events.wake(), Source::Events)?;
    let mut controls = Controls::new(Arc::clone(&reactor));
    let engine = controls.adopt(control)?;
    // The last of what came, if it has a user of its own; what is missing then is a tap, which is told.
    let claim = spec.uid.and_then(|_| given.pop()).map(Arc::new);
    match boot(&spec, given, &reactor, &events) {
        Ok((vm, booted)) => {
            controls.tell(engine, &booted);
            let owner = match spec.lifetime {
                Lifetime::Connection => Owner::Connection(engine),
                Lifetime::Detached => Owner::Nobody,
            };
            Running { vm, reactor, events, controls, owner, state: None, claim, quota: None, kept: Vec::new() }
                .until_the_end()
        }
        Err(refused) => {
            controls.tell(engine, &refused);
            log::info!("refused");
            Ok(())
        }
    }
}

fn boot(
    spec: &VmSpec,
    taps: Vec<OwnedFd>,
    reactor: &Arc<Reactor>,
    events: &Arc<Events>,
) -> Result<(Vm, FromVmm), FromVmm> {
    let begun = Instant::now();
    let vm = Vm::boot(spec, taps, reactor, events).map_err(|error| {
        let code: RefusalCode = error.code();
        FromVmm::Refused { code, message: error.to_string() }
    })?;
    let setup_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok((vm, FromVmm::Booted { setup_us }))
}

/// A VM that runs, and those who may give it orders.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) vm: Vm,
    pub(crate) reactor: Arc<Reactor>,
    pub(crate) events: Arc<Events>,
    pub(crate) controls: Controls,
    pub(crate) owner: Owner,
    /// What it says of itself, if anybody reads that. Locked for as long as this lives.
    pub(crate) state: Option<File>,
    /// What says that its user is taken.
    pub(crate) claim: Option<Arc<OwnedFd>>,
    /// What its disks may take of the host, until it is known that the guest wanted more.
    pub(crate) quota: Option<Arc<Quota>>,
    /// Where what was written to its disks goes when the guest powers itself off.
    pub(crate) kept: Vec<File>,
}

/// Whose end is the VM's.
#[derive(Debug)]
pub(crate) enum Owner {
    /// Nobody's.
    Nobody,
    /// That of whoever is at the other end of one of the connections.
    Connection(u32),
    /// That of whoever asked the template for this VM. Template and siblings share the connection, so it is not read.
    Asker(ControlSocket),
}

impl Owner {
    const fn asker(&self) -> Option<&ControlSocket> {
        match self {
            Self::Asker(asker) => Some(asker),
            Self::Nobody | Self::Connection(_) => None,
        }
    }
}

impl Running {
    /// Runs the VM, and tells everybody how it ended.
    pub(crate) fn until_the_end(mut self) -> Result<(), ServeError> {
        match self.run()? {
            Over::Ended(outcome) => {
                let outcome = self.keep_disks(outcome);
                log::info!("ended: {outcome:?}");
                self.controls.tell_all(&FromVmm::Ended { outcome });
                Ok(())
            }
            Over::Frozen => Ok(()),
            Over::Copied(seed) => branch::become_template(self, *seed),
        }
    }

    fn run(&mut self) -> Result<Over, ServeError> {
        let mut ready = Vec::new();
        loop {
            if self.vm.is_paused() {
                self.controls.wait(self.owner.asker(), &mut ready)?;
            } else {
                self.reactor.wait(&mut ready)?;
            }
            for (source, readiness) in &ready {
                match *source {
                    Source::Queue { device, queue } => self.vm.queue_notified(device, queue),
                    Source::Host { device, token } => self.vm.host_ready(device, token, *readiness),
                    Source::Events => {
                        if let Some(event) = self.events.first() {
                            return Ok(Over::Ended(self.outcome(event)));
                        }
                    }
                    Source::Asker | Source::Listener | Source::Control { .. } => {}
                }
            }
            self.note_full_disk();
            // After the devices: who is paused or branched has nothing half done.
            for (source, _) in &ready {
                match *source {
                    Source::Asker => return Ok(Over::Ended(Outcome::Stopped)),
                    Source::Listener => self.controls.accept(),
                    Source::Control { connection } => {
                        if let Some(over) = self.obey(connection)? {
                            return Ok(over);
                        }
                    }
                    Source::Events | Source::Queue { .. } | Source::Host { .. } => {}
                }
            }
        }
    }

    /// Says, once, that the guest was refused a write for want of room.
    fn note_full_disk(&mut self) {
        if !self.quota.as_ref().is_some_and(|quota| quota.was_exceeded()) {
            return;
        }
        self.quota = None;
        log::warn!("the guest has written as much to its disks as it may");
        if let Some(Err(error)) = self.state.as_ref().map(|state| Mark::DiskFull.set(state, true)) {
            log::warn!("its state cannot say so: {error}");
        }
    }

    /// Does what one of them says; an answer means that this process's part in the VM is over.
    fn obey(&mut self, connection: u32) -> Result<Option<Over>, ServeError> {
        match self.controls.hear(connection) {
            Heard::Gone if matches!(self.owner, Owner::Connection(owner) if owner == connection) => {
                return Ok(Some(Over::Ended(Outcome::Stopped)));
            }
            Heard::Gone | Heard::Nothing => {}
            Heard::Said(ToVmm::Stop, _) => return Ok(Some(Over::Ended(Outcome::Stopped))),
            Heard::Said(ToVmm::PowerButton, _) => self.vm.press_power_button()?,
            Heard::Said(ToVmm::Freeze, files) => return Ok(self.freeze(connection, files)),
            Heard::Said(ToVmm::KeepDisks, files) => self.kept = files.into_iter().map(File::from).collect(),
            Heard::Said(ToVmm::ShowTops, _) => self.show_tops(connection),
            Heard::Said(ToVmm::Branch, files) => return Ok(self.branch(connection, files)),
            Heard::Said(ToVmm::Pause, _) => self.pause(connection),
            Heard::Said(ToVmm::Resume, _) => self.resume(connection),
            Heard::Said(ToVmm::Boot(_) | ToVmm::Load(_) | ToVmm::Spawn { .. } | ToVmm::Write(_), _) => {
                log::warn!("connection {connection} said what is not for a running VM");
            }
        }
        Ok(None)
    }

    /// A guest that has powered itself off has left its disks as they are to be found again.
    fn keep_disks(&self, outcome: Outcome) -> Outcome {
        if self.kept.is_empty() || outcome != Outcome::Shutdown {
            return outcome;
        }
        match self.vm.write_disks(&self.kept) {
            Ok(_) => outcome,
            Err(error) => Outcome::Fault { message: format!("what was written to its disks is not kept: {error}") },
        }
    }

    fn freeze(&mut self, connection: u32, files: Vec<OwnedFd>) -> Option<Over> {
        let (told, over) = match self.vm.freeze(files) {
            Ok(frozen) => (frozen, Some(Over::Frozen)),
            Err(error) => {
                log::warn!("not frozen: {error}");
                (FromVmm::FreezeFailed { message: error.to_string() }, None)
            }
        };
        self.controls.tell(connection, &told);
        over
    }

    fn show_tops(&mut self, connection: u32) {
        match self.vm.tops() {
            Ok(tops) => {
                let fds: Vec<_> = tops.iter().map(AsFd::as_fd).collect();
                self.controls.hand(connection, &FromVmm::Tops, &fds);
            }
            Err(error) => {
                log::warn!("its tops cannot be shown: {error}");
                self.controls.tell(connection, &FromVmm::BranchFailed { message: error.to_string() });
            }
        }
    }

    fn branch(&mut self, connection: u32, files: Vec<OwnedFd>) -> Option<Over> {
        let told = match self.vm.branch(files) {
            Ok(Branched::Template(seed)) => return Some(Over::Copied(seed)),
            Ok(Branched::Source(branched)) => branched,
            Err(error) => {
                log::warn!("not branched: {error}");
                FromVmm::BranchFailed { message: error.to_string() }
            }
        };
        self.controls.tell(connection, &told);
        None
    }

    fn pause(&mut self, connection: u32) {
        let told = match self.vm.pause(self.state.as_ref()) {
            Ok(()) => FromVmm::Paused,
            Err(error) => {
                log::warn!("not paused: {error}");
                FromVmm::PauseFailed { message: error.to_string() }
            }
        };
        self.controls.tell(connection, &told);
    }

    fn resume(&mut self, connection: u32) {
        let told = match self.vm.resume(self.state.as_ref()) {
            Ok(()) => FromVmm::Resumed,
            Err(error) => {
                log::warn!("not resumed: {error}");
                FromVmm::PauseFailed { message: error.to_string() }
            }
        };
        self.controls.tell(connection, &told);
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

/// Why a process has nothing to do with its VM any more.
#[derive(Debug)]
enum Over {
    /// The VM ended.
    Ended(Outcome),
    /// It is written down.
    Frozen,
    /// This process is a copy of the VM's, from which a template grows.
    Copied(Box<Seed>),
}
