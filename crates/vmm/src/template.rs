//! A template: a frozen VM held ready. It has the state as plain data and the memory mapped, no VM of KVM's, one thread,
//! and a socket on which it is asked for children. A child is a `fork(2)` of this process, and so is the process that
//! writes the template down.
//!
//! Why forking is safe here: there is no other thread that could hold a lock, and the child keeps nothing of the
//! template's but memory, files that are only read, and the connection on which it reports (see [`crate::spawn`]).

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use proto::control::{ChildDescriptor, ChildSpec, ForkedChild, FromVmm, LoadSpec, RefusalCode, ToVmm, WriteSpec};

use crate::controls::{Controls, Heard};
use crate::frozen::Frozen;
use crate::load::Base;
use crate::memory::GuestRam;
use crate::reactor::{Reactor, Source};
use crate::serve::ServeError;
use crate::spawn::{self, Given, Newborn};
use crate::sys::fork::{self, Forked};
use crate::write::{self, Writer};
use crate::x86::ready_vcpu::ReadyVcpu;

/// How many milliseconds a thread that is over may stay.
const PATIENCE: u32 = 1000;

const NOT_LOADED: &str = "the template has not loaded yet";

/// Everything children need.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) kvm: Arc<Kvm>,
    pub(crate) frozen: Arc<Frozen>,
    pub(crate) vcpus: Vec<ReadyVcpu>,
    pub(crate) ram: GuestRam,
    pub(crate) disks: Vec<Base>,
    pub(crate) tops: PathBuf,
    pub(crate) msr_indices: Arc<[u32]>,
}

/// Waits for a snapshot, then forks children until it is told to stop.
pub(crate) fn serve(listener: OwnedFd) -> Result<(), ServeError> {
    fork::forget_children()?;
    warm_up()?;
    keep(None, listener)
}

/// Forks children until it is told to stop. They return from here too, when they end.
pub(crate) fn keep(template: Option<Template>, listener: OwnedFd) -> Result<(), ServeError> {
    let reactor = Reactor::new()?;
    let mut controls = Controls::new(Arc::clone(&reactor));
    controls.listen(listener)?;
    let mut keeper = Keeper { template, controls };
    let mut ready = Vec::new();
    loop {
        reactor.wait(&mut ready)?;
        for (source, _) in &ready {
            match *source {
                Source::Listener => keeper.controls.accept(),
                Source::Control { connection } => match keeper.obey(connection) {
                    Obeyed::Done => {}
                    Obeyed::Stopped => return Ok(()),
                    Obeyed::Copied(errand) => {
                        drop(reactor);
                        let Keeper { template, controls } = keeper;
                        let (Some(mut template), Some(asker)) = (template, controls.keep_only(connection)) else {
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

/// The first thread of a process makes the libraries look up and set up what all later ones use. Done here, no child has
/// to; and the thread's stack stays behind for the child's own first thread.
fn warm_up() -> Result<(), ServeError> {
    if thread::Builder::new().spawn(|| {})?.join().is_err() {
        log::warn!("a thread that does nothing failed");
    }
    // It is over, but the system may still be about to forget it.
    for _ in 0..PATIENCE {
        if fork::alone()? {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(io::Error::other("a thread that is over does not go").into())
}

struct Keeper {
    template: Option<Template>,
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
            Heard::Said(ToVmm::Load(spec), files) if self.template.is_none() => self.load(connection, spec, files),
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
    fn load(&mut self, connection: u32, spec: LoadSpec, files: Vec<OwnedFd>) -> Obeyed {
        let begun = Instant::now();
        match Template::load(spec, files) {
            Ok(template) => {
                self.template = Some(template);
                let setup_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.controls.tell(connection, &FromVmm::Loaded { setup_us });
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
        let why = if self.template.is_none() { Some(NOT_LOADED.to_owned()) } else { cannot_fork() };
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
        let Some(template) = &self.template else { return Some(NOT_LOADED.to_owned()) };
        let of_kind = |kind| kinds.iter().filter(|each| **each == kind).count();
        let (taps, groups) = (of_kind(ChildDescriptor::Tap), of_kind(ChildDescriptor::Cgroup));
        let needed = usize::from(template.frozen.shape.net.is_some());
        if taps != needed || groups > 1 {
            return Some(format!("a child needs {needed} taps and no more than one group; {kinds:?} came"));
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
