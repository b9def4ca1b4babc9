//! A template: a frozen VM held ready. It has the state as plain data and the memory mapped, no VM of KVM's, one thread,
//! and a socket on which it is asked for children. A child is a `fork(2)` of this process.
//!
//! Why forking is safe here: there is no other thread that could hold a lock, and the child keeps nothing of the
//! template's but memory, files that are only read, and the connection on which it reports (see [`crate::spawn`]).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use layer::{Layer, StackError};
use proto::control::{ChildDescriptor, ChildSpec, ForkedChild, FromVmm, LoadSpec, RefusalCode, ToVmm};
use virtio::GuestMem;
use virtio::block::Layers;

use crate::controls::{Controls, Heard};
use crate::frozen::file::{self, StateFileError};
use crate::frozen::{DiskKind, Frozen, memory as image};
use crate::memory::{self, MemoryError};
use crate::reactor::{Reactor, Source};
use crate::serve::ServeError;
use crate::spawn::{self, Given, Newborn};
use crate::sys::fork::{self, Forked};
use crate::sys::slot;
use crate::x86::ready_vcpu::ReadyVcpu;
use crate::x86::{cpuid, vcpu_state};

/// How many milliseconds a thread that is over may stay.
const PATIENCE: u32 = 1000;

/// Why a frozen VM cannot be taken up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The files that came with the request.
    #[error("{found} files came with the request to load, {expected} are needed")]
    Files {
        /// How many came.
        found: usize,
        /// How many are needed.
        expected: usize,
    },
    /// `/dev/kvm`.
    #[error("/dev/kvm cannot be used: {source}; `forkd doctor` says what to do")]
    Kvm {
        /// What KVM says.
        #[from]
        source: kvm_ioctls::Error,
    },
    /// The state file.
    #[error(transparent)]
    State(#[from] StateFileError),
    /// It contradicts itself, or cannot live on this host.
    #[error("the snapshot cannot be used here: {why}")]
    Unfit {
        /// Why.
        why: String,
    },
    /// A disk's layers.
    #[error("disk {disk} of the snapshot cannot be used: {source}")]
    Disk {
        /// Which.
        disk: usize,
        /// What is wrong.
        source: StackError,
    },
    /// The memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl LoadError {
    const fn code(&self) -> RefusalCode {
        match self {
            Self::Kvm { .. } => RefusalCode::Kvm,
            Self::Memory(error) => error.code(),
            Self::Files { .. } => RefusalCode::Host,
            Self::State(_) | Self::Unfit { .. } | Self::Disk { .. } => RefusalCode::Snapshot,
        }
    }
}

/// The immutable part of a disk.
#[derive(Debug)]
pub(crate) enum Base {
    /// An image the guest only reads.
    ReadOnly(File),
    /// What is below the tops.
    Private(Layers),
}

/// Everything children need.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) kvm: Kvm,
    pub(crate) frozen: Frozen,
    pub(crate) vcpus: Vec<ReadyVcpu>,
    pub(crate) mem: GuestMem,
    pub(crate) disks: Vec<Base>,
    pub(crate) tops: PathBuf,
    pub(crate) msr_indices: Arc<[u32]>,
}

impl Template {
    fn load(spec: LoadSpec, files: Vec<OwnedFd>) -> Result<Self, LoadError> {
        let layers: usize = spec.disks.iter().map(|layers| usize::from(layers.get())).sum();
        let (found, expected) = (files.len(), 2 + layers);
        let mut files = files.into_iter().map(File::from);
        let (true, Some(state), Some(memory)) = (found == expected, files.next(), files.next()) else {
            return Err(LoadError::Files { found, expected });
        };
        let kvm = Kvm::new()?;
        let frozen = file::read(&state)?;
        let unfit = |why| LoadError::Unfit { why };
        frozen.check(&cpuid::offered(&kvm)?).map_err(unfit)?;
        let kinds = &frozen.shape.disks;
        if kinds.len() != spec.disks.len() {
            return Err(unfit(format!("it has {} disks, {} came", kinds.len(), spec.disks.len())));
        }
        let mut disks = Vec::new();
        for (disk, (kind, count)) in kinds.iter().zip(&spec.disks).enumerate() {
            let mut layers: Vec<File> = files.by_ref().take(count.get().into()).collect();
            disks.push(match (kind, layers.len()) {
                (DiskKind::ReadOnly, 1) => Base::ReadOnly(layers.remove(0)),
                (DiskKind::ReadOnly, _) => {
                    return Err(unfit(format!("disk {disk} is read-only and cannot have layers")));
                }
                (DiskKind::Private, _) => {
                    Base::Private(open_layers(layers).map_err(|source| LoadError::Disk { disk, source })?)
                }
            });
        }
        image::verify(&frozen.memory, frozen.shape.memory, &memory).map_err(unfit)?;
        let mem = memory::map_image(frozen.shape.memory, &memory)?;
        let vcpus = rehearse(&kvm, &mem, &frozen)?;
        let msr_indices = vcpu_state::msr_indices(&kvm)?.into();
        Ok(Self { kvm, frozen, vcpus, mem, disks, tops: spec.tops, msr_indices })
    }
}

/// The first file is the image.
fn open_layers(mut files: Vec<File>) -> Result<Layers, StackError> {
    let above = files.split_off(files.len().min(1)).into_iter();
    let image = files.pop().ok_or_else(|| StackError::Image { source: io::ErrorKind::NotFound.into() })?;
    let open = |(index, file)| Layer::open(file, None).map_err(|source| StackError::Layer { index, source });
    Layers::open(image, (1..).zip(above).map(open).collect::<Result<_, _>>()?)
}

/// Gives the vCPUs' states to a VM that is thrown away: what cannot be restored here is found out before there is a
/// child, and what need not be is found out once for all of them. It needs the memory too: what a kernel shares with KVM
/// (its clock, page faults that wait) is named to a vCPU by an address, and KVM refuses one where there is nothing.
fn rehearse(kvm: &Kvm, mem: &GuestMem, frozen: &Frozen) -> Result<Vec<ReadyVcpu>, LoadError> {
    let vm = kvm.create_vm()?;
    slot::set_all(&vm, mem)?;
    cpuid::disable_counters(&vm)?;
    vm.create_irq_chip()?;
    let vcpus = (0..).zip(&frozen.vcpus).map(|(id, _)| vm.create_vcpu(id)).collect::<Result<Vec<_>, _>>()?;
    let unfit = |index, error| LoadError::Unfit { why: format!("vCPU {index}: {error}") };
    let mut ready = Vec::with_capacity(vcpus.len());
    for (index, (vcpu, state)) in vcpus.iter().zip(&frozen.vcpus).enumerate() {
        let laid_out = ReadyVcpu::new(state, vcpu).map_err(|error| unfit(index, error))?;
        laid_out.restore(state, vcpu).map_err(|error| unfit(index, error))?;
        ready.push(laid_out);
    }
    Ok(ready)
}

/// Waits for a snapshot, then forks children until it is told to stop. Children return from here too, when they end.
pub(crate) fn serve(listener: OwnedFd) -> Result<(), ServeError> {
    let reactor = Reactor::new()?;
    let mut controls = Controls::new(Arc::clone(&reactor));
    controls.listen(listener)?;
    fork::forget_children()?;
    warm_up()?;
    let mut keeper = Keeper { template: None, controls };
    let mut ready = Vec::new();
    loop {
        reactor.wait(&mut ready)?;
        for (source, _) in &ready {
            match *source {
                Source::Listener => keeper.controls.accept()?,
                Source::Control { connection } => match keeper.obey(connection)? {
                    Obeyed::Done => {}
                    Obeyed::Stopped => return Ok(()),
                    Obeyed::Born(newborn) => {
                        drop(reactor);
                        let Keeper { template, controls } = keeper;
                        let (Some(template), Some(asker)) = (template, controls.keep_only(connection)) else {
                            return Ok(());
                        };
                        return spawn::live(template, *newborn, asker);
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
    /// This process is the child.
    Born(Box<Newborn>),
}

impl Keeper {
    fn obey(&mut self, connection: u32) -> Result<Obeyed, ServeError> {
        match self.controls.hear(connection) {
            Heard::Gone | Heard::Nothing => Ok(Obeyed::Done),
            Heard::Said(ToVmm::Stop, _) => Ok(Obeyed::Stopped),
            Heard::Said(ToVmm::Load(spec), files) if self.template.is_none() => Ok(self.load(connection, spec, files)),
            Heard::Said(ToVmm::Spawn { children, descriptors }, fds) => {
                self.spawn(connection, children, &descriptors, fds)
            }
            Heard::Said(message, _) => {
                log::warn!("connection {connection} said what is not for this template now: {message:?}");
                Ok(Obeyed::Done)
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
    ) -> Result<Obeyed, ServeError> {
        if let Some(why) = self.cannot_spawn(children.len(), kinds, fds.len())? {
            for child in children {
                self.not_started(connection, child.id, why.clone());
            }
            self.controls.tell(connection, &FromVmm::Forked { children: Vec::new() });
            return Ok(Obeyed::Done);
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
                    return Ok(Obeyed::Born(Box::new(Newborn { spec, given })));
                }
                Ok(Forked::Parent(pid)) => forked.push(ForkedChild { id, pid: pid.as_raw_nonzero().get() }),
                Err(error) => self.not_started(connection, id, format!("the host refused a process: {error}")),
            }
        }
        self.controls.tell(connection, &FromVmm::Forked { children: forked });
        Ok(Obeyed::Done)
    }

    fn cannot_spawn(
        &self,
        children: usize,
        kinds: &[ChildDescriptor],
        fds: usize,
    ) -> Result<Option<String>, ServeError> {
        let Some(template) = &self.template else { return Ok(Some("the template has not loaded yet".to_owned())) };
        let of_kind = |kind| kinds.iter().filter(|each| **each == kind).count();
        let (taps, groups) = (of_kind(ChildDescriptor::Tap), of_kind(ChildDescriptor::Cgroup));
        let needed = usize::from(template.frozen.shape.net.is_some());
        if taps != needed || groups > 1 {
            return Ok(Some(format!("a child needs {needed} taps and no more than one group; {kinds:?} came")));
        }
        if Some(fds) != children.checked_mul(kinds.len()) {
            return Ok(Some(format!("{fds} descriptors came for {children} children, of each kind of {kinds:?}")));
        }
        let alone = fork::alone()?;
        Ok((!alone).then(|| "the template has other threads".to_owned()))
    }

    fn not_started(&mut self, connection: u32, id: String, message: String) {
        self.controls.tell(connection, &FromVmm::NotStarted { id, code: RefusalCode::Host, message });
    }
}
