//! A template: a frozen VM held ready. It has the state as plain data and the memory mapped, no VM of KVM's, one thread,
//! and a socket on which it is asked for children. A child is a `fork(2)` of this process, and so is the process that
//! writes the template down.
//!
//! Why forking is safe here: there is no other thread that could hold a lock, and the child keeps nothing of the
//! template's but memory, files that are only read, and the connection on which it reports (see [`crate::spawn`]).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use kvm_ioctls::Kvm;
use proto::control::{ChildDescriptor, ChildSpec, ForkedChild, FromVmm, LoadSpec, RefusalCode, ToVmm, WriteSpec};

use crate::controls::{Controls, Heard};
use crate::frozen::Frozen;
use crate::jail;
use crate::load::{Base, LoadError};
use crate::memory::GuestRam;
use crate::reactor::{Reactor, Source};
use crate::serve::ServeError;
use crate::spawn::{self, Given, Newborn};
use crate::sys::fork::{self, Forked};
use crate::write::{self, Writer};
use crate::x86::ready_vcpu::ReadyVcpu;

const NOT_LOADED: &str = "the template has not loaded yet";

/// Everything children need.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) kvm: Arc<Kvm>,
    pub(crate) frozen: Arc<Frozen>,
    pub(crate) vcpus: Vec<ReadyVcpu>,
    pub(crate) ram: GuestRam,
    pub(crate) disks: Vec<Base>,
    pub(crate) msr_indices: Arc<[u32]>,
    /// What says that its user is taken, if it has one that its children cannot change.
    pub(crate) claim: Option<Arc<OwnedFd>>,
}

impl Template {
    /// How many of its disks a child writes to.
    pub(crate) fn tops(&self) -> u8 {
        let private = self.disks.iter().filter(|disk| matches!(disk, Base::Private(_))).count();
        u8::try_from(private).unwrap_or(u8::MAX)
    }
}

/// Waits for a snapshot, then forks children until it is told to stop.
pub(crate) fn serve(listener: OwnedFd) -> Result<(), ServeError> {
    let kvm = Kvm::new();
    jail::enter_as_template()?;
    keep(Held::Nothing(kvm), listener)
}

/// What a template holds.
#[derive(Debug)]
pub(crate) enum Held {
    /// Nothing yet; what it will be made with, if that can be used.
    Nothing(Result<Kvm, kvm_ioctls::Error>),
    /// A VM.
    Vm(Template),
}

impl Held {
    const fn template(&self) -> Option<&Template> {
        match self {
            Self::Nothing(_) => None,
            Self::Vm(template) => Some(template),
        }
    }
}

/// Forks children until it is told to stop. They return from here too, when they end.
pub(crate) fn keep(held: Held, listener: OwnedFd) -> Result<(), ServeError> {
    let reactor = Reactor::new()?;
    let mut controls = Controls::new(Arc::clone(&reactor));
    controls.listen(listener)?;
    let mut keeper = Keeper { held, controls };
    let (mut ready, mut stopping) = (Vec::new(), false);
    loop {
        if stopping {
            // Who asked before it was told to stop is still served: the next template is not there yet.
            reactor.look(&mut ready)?;
            if ready.is_empty() {
                return Ok(());
            }
        } else {
            reactor.wait(&mut ready)?;
        }
        for (source, _) in &ready {
            match *source {
                Source::Listener => keeper.controls.accept(),
                Source::Control { connection } => match keeper.obey(connection) {
                    Obeyed::Done => {}
                    Obeyed::Stopped => stopping = true,
                    Obeyed::Copied(errand) => {
                        drop(reactor);
                        let Keeper { held, controls } = keeper;
                        let (Held::Vm(mut template), Some(asker)) = (held, controls.keep_only(connection)) else {
                            return Ok(());
                        };
                        return match *errand {
                            Errand::Live(newborn) => spawn::live(&mut template, newborn, asker),
                            Errand::Write(writer) => write::run(&template, writer, &asker),
                        };
                    }
                },
                Source::Asker | Source::Events | Source::Queue { .. } | Source::Host { .. } => {}
            }
        }
    }
}

struct Keeper {
    held: Held,
    controls: Controls,
}

enum Obeyed {
    Done,
    Stopped,
    /// This process is a copy, and this is what it was made for.
    Copied(Box<Errand>),
}

/// What a copy of the template is made for.
enum Errand {
    /// To be a VM.
    Live(Newborn),
    /// To write the template down.
    Write(Writer),
}

impl Keeper {
    fn obey(&mut self, connection: u32) -> Obeyed {
        match self.controls.hear(connection) {
            Heard::Gone | Heard::Nothing => Obeyed::Done,
            Heard::Said(ToVmm::Stop, _) => Obeyed::Stopped,
            Heard::Said(ToVmm::Load(spec), files) => self.load(connection, &spec, files),
            Heard::Said(ToVmm::Spawn { children, descriptors }, fds) => {
                self.spawn(connection, children, &descriptors, fds)
            }
            Heard::Said(ToVmm::Write(spec), files) => self.write(connection, spec, files),
            Heard::Said(message, _) => {
                log::warn!("connection {connection} said what is not for this template now: {message:?}");
                Obeyed::Done
            }
        }
    }

    /// A template that could not load is of no use and ends.
    fn load(&mut self, connection: u32, spec: &LoadSpec, files: Vec<OwnedFd>) -> Obeyed {
        let begun = Instant::now();
        let nothing = Held::Nothing(Err(kvm_ioctls::Error::new(libc::EBUSY)));
        let kvm = match std::mem::replace(&mut self.held, nothing) {
            Held::Nothing(kvm) => kvm,
            Held::Vm(template) => {
                log::warn!("connection {connection} has something to load for a template that has loaded");
                self.held = Held::Vm(template);
                return Obeyed::Done;
            }
        };
        match kvm.map_err(LoadError::from).and_then(|kvm| Template::load(kvm, spec, files)) {
            Ok(template) => {
                let (setup_us, tops) = (begun.elapsed().as_micros(), template.tops());
                self.held = Held::Vm(template);
                let setup_us = u64::try_from(setup_us).unwrap_or(u64::MAX);
                self.controls.tell(connection, &FromVmm::Loaded { setup_us, tops });
                Obeyed::Done
            }
            Err(error) => {
                log::warn!("not loaded: {error}");
                self.controls.tell(connection, &FromVmm::Refused { code: error.code(), message: error.to_string() });
                Obeyed::Stopped
            }
        }
    }

    fn spawn(
        &mut self,
        connection: u32,
        children: Vec<ChildSpec>,
        kinds: &[ChildDescriptor],
        fds: Vec<OwnedFd>,
    ) -> Obeyed {
        if let Some(why) = self.cannot_spawn(children.len(), kinds, fds.len()) {
            for child in children {
                self.not_started(connection, child.id, why.clone());
            }
            self.controls.tell(connection, &FromVmm::Forked { children: Vec::new() });
            return Obeyed::Done;
        }
        let mut fds = fds.into_iter();
        let mut forked = Vec::with_capacity(children.len());
        for child in &children {
            // Ours is closed with the turn of the loop, and the child closes those of its siblings.
            let (given, id) = (Given::take(kinds, &mut fds), child.id.clone());
            match fork::fork() {
                Ok(Forked::Child) => {
                    let spec = child.clone();
                    // Freeing what was inherited would copy the pages it lies in, for memory that nobody lacks.
                    children.leak();
                    forked.leak();
                    return Obeyed::Copied(Box::new(Errand::Live(Newborn { spec, given })));
                }
                Ok(Forked::Parent(pid)) => forked.push(ForkedChild { id, pid: pid.as_raw_nonzero().get() }),
                Err(error) => self.not_started(connection, id, format!("the host refused a process: {error}")),
            }
        }
        self.controls.tell(connection, &FromVmm::Forked { children: forked });
        Obeyed::Done
    }

    /// Whatever keeps the writer from writing it says itself.
    fn write(&mut self, connection: u32, spec: WriteSpec, files: Vec<OwnedFd>) -> Obeyed {
        let why = if self.held.template().is_none() { Some(NOT_LOADED.to_owned()) } else { cannot_fork() };
        let forked = why.map_or_else(fork::fork, |why| Err(io::Error::other(why)));
        match forked {
            Ok(Forked::Child) => return Obeyed::Copied(Box::new(Errand::Write(Writer { spec, files }))),
            Ok(Forked::Parent(pid)) => {
                let writer = ForkedChild { id: spec.id, pid: pid.as_raw_nonzero().get() };
                self.controls.tell(connection, &FromVmm::Forked { children: vec![writer] });
            }
            Err(error) => {
                let message = format!("no process can write it: {error}");
                self.controls.tell(connection, &FromVmm::WriteFailed { message });
            }
        }
        Obeyed::Done
    }

    fn cannot_spawn(&self, children: usize, kinds: &[ChildDescriptor], fds: usize) -> Option<String> {
        let Some(template) = self.held.template() else { return Some(NOT_LOADED.to_owned()) };
        // None at all are for a question whether it could.
        if children > 0
            && let Some(why) = spawn::lacks(kinds, template)
        {
            return Some(why);
        }
        if Some(fds) != children.checked_mul(kinds.len()) {
            return Some(format!("{fds} descriptors came for {children} children, of each kind of {kinds:?}"));
        }
        cannot_fork()
    }

    fn not_started(&mut self, connection: u32, id: String, message: String) {
        self.controls.tell(connection, &FromVmm::NotStarted { id, code: RefusalCode::Host, message });
    }
}

/// Why forking would not be safe now. A host that is short of something keeps this from being known for a while, which is
/// no reason for a template to end.
fn cannot_fork() -> Option<String> {
    match fork::alone() {
        Ok(true) => None,
        Ok(false) => Some("the template has other threads".to_owned()),
        Err(error) => Some(format!("whether the template has other threads cannot be told: {error}")),
    }
}
