//! Putting a VM together: the pieces that booting and restoring share. Building is all or nothing.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kvm_ioctls::{IoEventAddress, Kvm, VmFd};
use proto::control::RefusalCode;
use virtio::{
    Device, GuestMem, IrqLine, MMIO_SIZE, MmioTransport, QUEUE_NOTIFY_OFFSET, RestoreError, TransportStateV1,
};
use vmm_sys_util::eventfd::EventFd;

use crate::bus::SharedTransport;
use crate::devices::DevicesError;
use crate::jail::JailError;
use crate::kernel::KernelError;
use crate::layout::{IDENTITY_MAP, IRQ_VIRTIO, TSS, VIRTIO_MMIO};
use crate::memory::MemoryError;
use crate::reactor::{DevicePoller, Reactor, Source};
use crate::stages::Stages;
use crate::sys;
use crate::x86::acpi::AcpiError;
use crate::x86::cpuid;
use crate::x86::registers::RegistersError;
use crate::x86::vcpu_state::VcpuStateError;

/// Why a VM could not be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    /// `/dev/kvm` cannot be opened.
    #[error("/dev/kvm cannot be opened: {source}; `forkd doctor` says what to do")]
    Open {
        /// What the system says.
        source: kvm_ioctls::Error,
    },
    /// KVM refused something.
    #[error("KVM refused {what}: {source}")]
    Kvm {
        /// What.
        what: &'static str,
        /// What KVM says.
        source: kvm_ioctls::Error,
    },
    /// The console's log cannot be made.
    #[error("the console log {} cannot be made: {source}", path.display())]
    Console {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The host has no descriptors or threads left.
    #[error("the host refused {what}: {source}")]
    Host {
        /// What.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The process would not be confined.
    #[error(transparent)]
    Jail(#[from] JailError),
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Kernel, initramfs or command line.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A device.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// The firmware tables.
    #[error(transparent)]
    Acpi(#[from] AcpiError),
    /// A vCPU's registers.
    #[error(transparent)]
    Registers(#[from] RegistersError),
    /// A vCPU's saved state.
    #[error("vCPU {vcpu} cannot be restored: {source}")]
    Vcpu {
        /// Which.
        vcpu: usize,
        /// What went wrong.
        source: VcpuStateError,
    },
    /// A device's saved state.
    #[error("device {index} cannot be restored: {source}")]
    Device {
        /// Which.
        index: u16,
        /// What went wrong.
        source: RestoreError,
    },
    /// A device without a saved state.
    #[error("device {index} has no saved state")]
    NoState {
        /// Which.
        index: u16,
    },
}

impl BuildError {
    /// Which case the engine is told.
    pub(crate) const fn code(&self) -> RefusalCode {
        match self {
            Self::Open { .. } | Self::Kvm { .. } | Self::Registers(_) => RefusalCode::Kvm,
            Self::Vcpu { .. } | Self::Device { .. } | Self::NoState { .. } => RefusalCode::Snapshot,
            Self::Memory(error) => error.code(),
            Self::Kernel(_) => RefusalCode::Kernel,
            Self::Devices(error) => error.code(),
            Self::Console { .. } | Self::Host { .. } | Self::Jail(_) | Self::Acpi(_) => RefusalCode::Host,
        }
    }
}

pub(crate) fn kvm_error(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> BuildError {
    move |source| BuildError::Kvm { what, source }
}

pub(crate) fn host_error(what: &'static str) -> impl FnOnce(io::Error) -> BuildError {
    move |source| BuildError::Host { what, source }
}

/// A line into KVM's interrupt controller.
#[derive(Debug)]
struct IrqFd(EventFd);

impl IrqLine for IrqFd {
    fn raise(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

/// A VM with its memory and interrupt controllers. The slots come first: setting them waits until nobody reads the VM's
/// tables, which is quick for a VM that has nothing yet; after the interrupt controllers, the kernel still has their old
/// tables to dispose of and lets the slots wait for that, several milliseconds.
pub(crate) fn create_vm(kvm: &Kvm, mem: &GuestMem, stages: &mut Stages) -> Result<VmFd, BuildError> {
    let fd = kvm.create_vm().map_err(kvm_error("a virtual machine"))?;
    stages.done("vm");
    sys::slot::set_all(&fd, mem).map_err(kvm_error("the guest's memory"))?;
    stages.done("memory");
    cpuid::disable_counters(&fd).map_err(kvm_error("a VM without performance counters"))?;
    fd.set_tss_address(TSS).map_err(kvm_error("the task state segment's address"))?;
    fd.set_identity_map_address(IDENTITY_MAP).map_err(kvm_error("the identity map's address"))?;
    fd.create_irq_chip().map_err(kvm_error("the interrupt controllers"))?;
    stages.done("irqchip");
    Ok(fd)
}

fn event_fd() -> Result<EventFd, BuildError> {
    EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).map_err(host_error("an event descriptor"))
}

/// Raises an interrupt once, from a line that is raised so rarely that it needs no descriptor.
pub(crate) fn interrupt(fd: &VmFd, irq: u32) -> Result<(), kvm_ioctls::Error> {
    fd.set_irq_line(irq, true)?;
    fd.set_irq_line(irq, false)
}

/// A descriptor that raises an interrupt.
pub(crate) fn irq_line(fd: &VmFd, irq: u32) -> Result<EventFd, BuildError> {
    let line = event_fd()?;
    fd.register_irqfd(&line, irq).map_err(kvm_error("an interrupt line"))?;
    Ok(line)
}

/// The devices behind their registers.
#[derive(Debug, Default)]
pub(crate) struct Wired {
    /// In the order of their register pages.
    pub(crate) transports: Vec<SharedTransport>,
    /// By which the guest notifies each queue of each device.
    pub(crate) notifiers: Vec<Vec<EventFd>>,
}

/// Gives every device its registers, its interrupt and a notifier per queue; and its past, if it has one. The vCPUs and
/// interrupt controllers must have theirs already: a device sends interrupts that were under way again.
pub(crate) fn wire_all(
    fd: &VmFd,
    devices: Vec<Box<dyn Device>>,
    states: Option<&[TransportStateV1]>,
    mem: &GuestMem,
    reactor: &Arc<Reactor>,
) -> Result<Wired, BuildError> {
    let mut wired = Wired::default();
    for (position, device) in devices.into_iter().enumerate() {
        let index = u16::try_from(position).expect("at most VIRTIO_DEVICES_MAX devices");
        let irq = Box::new(IrqFd(irq_line(fd, IRQ_VIRTIO + u32::from(index))?));
        let poller = Arc::new(DevicePoller::new(Arc::clone(reactor), index));
        let transport = match states.map(|states| states.get(position)) {
            None => MmioTransport::new(device, mem.clone(), irq, poller),
            Some(Some(state)) => MmioTransport::restore(device, mem.clone(), irq, poller, state)
                .map_err(|source| BuildError::Device { index, source })?,
            Some(None) => return Err(BuildError::NoState { index }),
        };
        wired.notifiers.push(notifiers(fd, index, transport.queue_count(), reactor)?);
        wired.transports.push(Arc::new(Mutex::new(transport)));
    }
    Ok(wired)
}

fn notifiers(fd: &VmFd, device: u16, queues: u16, reactor: &Arc<Reactor>) -> Result<Vec<EventFd>, BuildError> {
    let notify = IoEventAddress::Mmio(VIRTIO_MMIO + u64::from(device) * MMIO_SIZE + QUEUE_NOTIFY_OFFSET);
    (0..queues)
        .map(|queue| {
            let notifier = event_fd()?;
            fd.register_ioevent(&notifier, &notify, u32::from(queue)).map_err(kvm_error("a queue notifier"))?;
            reactor.watch(&notifier, Source::Queue { device, queue }).map_err(host_error("an epoll entry"))?;
            Ok(notifier)
        })
        .collect()
}
