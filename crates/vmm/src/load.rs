//! Taking up a frozen VM from its files, or refusing to: everything is checked before there is a child.
//!
//! A chain of memory layers is laid over each other once, in a nameless file, so that a child maps one file whatever the
//! depth of the chain, and a page that became a child's own is one that differs. All children have that file: what they
//! inherit of it can only be read.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use kvm_ioctls::Kvm;
use layer::{Layer, LayerError, Stack, StackError};
use proto::control::{DiskBase, DiskLayers, LoadSpec, RefusalCode};
use types::GuestMemorySize;
use virtio::GuestMem;
use virtio::block::{Layers, RawDisk};

use crate::devices::Disk;
use crate::frozen::file::{self, StateFileError};
use crate::frozen::{DiskKind, Frozen};
use crate::memory::{self, GuestRam, MemoryError};
use crate::sys::slot;
use crate::template::Template;
use crate::x86::ready_vcpu::ReadyVcpu;
use crate::x86::{cpuid, vcpu_state};

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
    /// A layer of the memory, or of a disk, is not what was written.
    #[error("{what} of the snapshot cannot be used: {source}")]
    Layer {
        /// Which.
        what: String,
        /// What is wrong.
        source: LayerError,
    },
    /// The layers of the memory cannot be laid over each other.
    #[error("the memory of the snapshot cannot be put together: {source}")]
    Flatten {
        /// What the system says.
        source: io::Error,
    },
    /// The memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl LoadError {
    /// Which case the engine is told.
    pub(crate) const fn code(&self) -> RefusalCode {
        match self {
            Self::Kvm { .. } => RefusalCode::Kvm,
            Self::Memory(error) => error.code(),
            Self::Files { .. } | Self::Flatten { .. } => RefusalCode::Host,
            Self::State(_) | Self::Unfit { .. } | Self::Disk { .. } | Self::Layer { .. } => RefusalCode::Snapshot,
        }
    }
}

/// The immutable part of a disk.
#[derive(Debug)]
pub(crate) enum Base {
    /// An image the guest only reads.
    ReadOnly(RawDisk),
    /// What is below the tops.
    Private(Layers),
}

impl Base {
    /// What a disk of a VM that was branched is at that instant. In the forked process only, and once: it takes the disk
    /// away.
    pub(crate) fn of_branched(disk: &Disk) -> Option<Self> {
        Some(match disk {
            Disk::ReadOnly(disk) => Self::ReadOnly(disk.clone()),
            Disk::Private(disk) => Self::Private(disk.take_sealed()?),
        })
    }

    /// All its files.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        match self {
            Self::ReadOnly(disk) => vec![disk.file().as_raw_fd()],
            Self::Private(layers) => layers.iter().map(AsRawFd::as_raw_fd).collect(),
        }
    }
}

impl Template {
    /// Takes up a frozen VM.
    pub(crate) fn load(kvm: Kvm, spec: &LoadSpec, files: Vec<OwnedFd>) -> Result<Self, LoadError> {
        let found = files.len();
        let of_disk = |disk: &DiskLayers| usize::from(disk.layers) + usize::from(disk.base == DiskBase::Image);
        let flat = if spec.memory.get() > 1 { 2 } else { 0 };
        let expected = 1 + usize::from(spec.memory.get()) + spec.disks.iter().map(of_disk).sum::<usize>() + flat;
        let mut files = files.into_iter().map(File::from);
        let (true, Some(state)) = (found == expected, files.next()) else {
            return Err(LoadError::Files { found, expected });
        };
        let frozen = file::read(&state)?;
        let unfit = |why| LoadError::Unfit { why };
        frozen.check(&cpuid::offered(&kvm)?).map_err(unfit)?;
        let memory: Vec<File> = files.by_ref().take(spec.memory.get().into()).collect();
        let kinds = &frozen.shape.disks;
        if kinds.len() != spec.disks.len() {
            return Err(unfit(format!("it has {} disks, {} came", kinds.len(), spec.disks.len())));
        }
        let mut disks = Vec::new();
        for (index, (kind, made_of)) in kinds.iter().zip(&spec.disks).enumerate() {
            let own = files.by_ref().take(of_disk(made_of)).collect();
            disks.push(open_disk(index, *kind, *made_of, own)?);
        }
        let flat = files.next().zip(files.next()).map(|(written, read)| Flat { written, read });
        let ram = open_memory(frozen.shape.memory, memory, flat)?;
        let vcpus = rehearse(&kvm, &ram.mem, &frozen)?;
        let msr_indices = vcpu_state::msr_indices(&kvm)?.into();
        let (kvm, frozen) = (Arc::new(kvm), Arc::new(frozen));
        Ok(Self { kvm, frozen, vcpus, ram, disks, msr_indices, claim: None })
    }
}

fn open_disk(index: usize, kind: DiskKind, made_of: DiskLayers, mut files: Vec<File>) -> Result<Base, LoadError> {
    let unfit = |why: &str| LoadError::Unfit { why: format!("disk {index} {why}") };
    let image = match made_of.base {
        DiskBase::Image if !files.is_empty() => Some(files.remove(0)),
        _ => None,
    };
    match (kind, image, files.len()) {
        (DiskKind::ReadOnly, Some(image), 0) => {
            let disk = RawDisk::new(image).map_err(|error| unfit(&format!("cannot be used: {error}")))?;
            Ok(Base::ReadOnly(disk))
        }
        (DiskKind::ReadOnly, ..) => Err(unfit("is read-only: it is an image and has no layers")),
        (DiskKind::Private, image, _) => {
            let layers = open_layers(&format!("disk {index}"), files, None)?;
            let opened = match image {
                Some(image) => Layers::open(image, layers),
                None => Layers::over_zeroes(layers),
            };
            opened.map(Base::Private).map_err(|source| LoadError::Disk { disk: index, source })
        }
    }
}

/// Opens layers and reads all that is in them: a block that rotted is found now and not by a guest.
fn open_layers(of_what: &str, files: Vec<File>, length: Option<u64>) -> Result<Vec<Layer>, LoadError> {
    let mut layers = Vec::with_capacity(files.len());
    for (number, file) in files.into_iter().enumerate() {
        let failed = |source| LoadError::Layer { what: format!("layer {number} of {of_what}"), source };
        let layer = Layer::open(file, length).map_err(failed)?;
        layer.check_quick().map_err(failed)?;
        layers.push(layer);
    }
    Ok(layers)
}

/// An empty file, opened twice: only the one that cannot write it is left to children.
struct Flat {
    written: File,
    read: File,
}

/// Maps the memory that layers add up to, in an empty file if there is more than one.
fn open_memory(size: GuestMemorySize, files: Vec<File>, flat: Option<Flat>) -> Result<GuestRam, LoadError> {
    let length = memory::file_len(size);
    let mut layers = open_layers("the memory", files, Some(length))?;
    if layers.len() == 1 {
        return Ok(memory::map_image(size, layers.remove(0).into_file())?);
    }
    let failed = |source| LoadError::Flatten { source };
    let stack = Stack::open(layer::Base::Zero { length }, layers).map_err(|error| failed(io::Error::other(error)))?;
    let Flat { written, read } = flat.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    layer::flatten(&stack, &written).map_err(failed)?;
    Ok(memory::map_image(size, read)?)
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
