//! A VM put together: memory, kernel, devices, vCPUs, wired to KVM. Building is all or nothing.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kvm_ioctls::{IoEventAddress, Kvm, VcpuFd, VmFd};
use proto::control::{RefusalCode, VmSpec};
use virtio::{Device, GuestMem, IrqLine, MMIO_SIZE, MmioTransport, QUEUE_NOTIFY_OFFSET};
use vmm_sys_util::eventfd::EventFd;

use crate::bus::{Bus, SharedTransport, lock};
use crate::console::ConsoleLog;
use crate::devices::{self, DevicesError};
use crate::events::Events;
use crate::kernel::{self, KernelError};
use crate::layout::{IDENTITY_MAP, IRQ_POWER_BUTTON, IRQ_SERIAL, IRQ_VIRTIO, TSS, VIRTIO_MMIO};
use crate::memory::{self, MemoryError};
use crate::ports::Ports;
use crate::reactor::{DevicePoller, Reactor, Source};
use crate::x86::acpi::{self, AcpiError};
use crate::x86::cpuid;
use crate::x86::registers::{self, RegistersError};
use crate::{generation, sys, vcpu};

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
}

impl BuildError {
    /// Which case the engine is told.
    pub(crate) const fn code(&self) -> RefusalCode {
        match self {
            Self::Open { .. } | Self::Kvm { .. } | Self::Registers(_) => RefusalCode::Kvm,
            Self::Memory(error) => error.code(),
            Self::Kernel(_) => RefusalCode::Kernel,
            Self::Devices(error) => error.code(),
            Self::Console { .. } | Self::Host { .. } | Self::Acpi(_) => RefusalCode::Host,
        }
    }
}

fn kvm_error(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> BuildError {
    move |source| BuildError::Kvm { what, source }
}

fn host_error(what: &'static str) -> impl FnOnce(io::Error) -> BuildError {
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

/// A running VM. Its vCPUs' threads run until the process ends, whatever becomes of this.
#[derive(Debug)]
pub(crate) struct Vm {
    _fd: VmFd,
    power_button: EventFd,
    devices: Vec<SharedTransport>,
    queues: Vec<Vec<EventFd>>,
    bus: Arc<Bus>,
    _mem: GuestMem,
}

impl Vm {
    /// Builds the VM and lets its vCPUs run. What happens to them is raised in `events`.
    pub(crate) fn start(
        spec: &VmSpec,
        taps: Vec<OwnedFd>,
        reactor: &Arc<Reactor>,
        events: &Arc<Events>,
    ) -> Result<Self, BuildError> {
        let kvm = Kvm::new().map_err(|source| BuildError::Open { source })?;
        let mem = memory::map(spec.memory)?;
        let entry = kernel::load(&mem, &spec.kernel, spec.initramfs.as_deref(), &spec.cmdline)?;
        registers::write_tables(&mem)?;
        generation::write_new(&mem).map_err(host_error("a VM generation id"))?;
        let virtio = devices::build(spec, taps)?;
        let count = u32::try_from(virtio.len()).unwrap_or(u32::MAX);
        acpi::write(&mem, spec.vcpus.get(), count)?;

        let fd = create_vm(&kvm, &mem)?;
        let serial_irq = irq_line(&fd, IRQ_SERIAL)?;
        let power_button = irq_line(&fd, IRQ_POWER_BUTTON)?;
        let mut devices = Vec::new();
        let mut queues = Vec::new();
        for (device, index) in virtio.into_iter().zip(0..) {
            let (transport, notifiers) = wire(&fd, device, index, &mem, reactor)?;
            devices.push(transport);
            queues.push(notifiers);
        }
        let bus = Arc::new(Bus::new(Ports::new(serial_irq, console(spec)?), devices.clone()));
        for (vcpu, id) in create_vcpus(&kvm, &fd, spec.vcpus.get(), entry)?.into_iter().zip(0..) {
            vcpu::start(id, vcpu, Arc::clone(&bus), Arc::clone(events)).map_err(host_error("a vCPU thread"))?;
        }
        Ok(Self { _fd: fd, power_button, devices, queues, bus, _mem: mem })
    }

    /// Presses the power button.
    pub(crate) fn press_power_button(&self) -> io::Result<()> {
        self.power_button.write(1)
    }

    /// The kernel's last words, if it had any.
    pub(crate) fn panic_reason(&self) -> Option<String> {
        self.bus.ports.panic_reason()
    }

    /// The guest notified a queue.
    pub(crate) fn queue_notified(&self, device: u16, queue: u16) {
        let (Some(transport), Some(notifier)) = (
            self.devices.get(usize::from(device)),
            self.queues.get(usize::from(device)).and_then(|queues| queues.get(usize::from(queue))),
        ) else {
            return;
        };
        if let Err(error) = notifier.read() {
            log::warn!("device {device}, queue {queue}: {error}");
        }
        lock(transport).queue_notified(queue);
    }

    /// Something of a device's on the host is ready.
    pub(crate) fn host_ready(&self, device: u16, token: u32, ready: virtio::Readiness) {
        if let Some(transport) = self.devices.get(usize::from(device)) {
            lock(transport).host_ready(token, ready);
        }
    }
}

fn console(spec: &VmSpec) -> Result<ConsoleLog, BuildError> {
    let file =
        File::create(&spec.console).map_err(|source| BuildError::Console { path: spec.console.clone(), source })?;
    Ok(ConsoleLog::new(file))
}

/// A VM with its interrupt controllers and memory. The slots come last: set before the interrupt controllers they cost
/// a wait for all readers in the kernel.
fn create_vm(kvm: &Kvm, mem: &GuestMem) -> Result<VmFd, BuildError> {
    let fd = kvm.create_vm().map_err(kvm_error("a virtual machine"))?;
    cpuid::disable_counters(&fd).map_err(kvm_error("a VM without performance counters"))?;
    fd.set_tss_address(TSS).map_err(kvm_error("the task state segment's address"))?;
    fd.set_identity_map_address(IDENTITY_MAP).map_err(kvm_error("the identity map's address"))?;
    fd.create_irq_chip().map_err(kvm_error("the interrupt controllers"))?;
    sys::slot::set_all(&fd, mem).map_err(kvm_error("the guest's memory"))?;
    Ok(fd)
}

fn create_vcpus(kvm: &Kvm, fd: &VmFd, count: u8, entry: u64) -> Result<Vec<VcpuFd>, BuildError> {
    let offered = cpuid::offered(kvm).map_err(kvm_error("its CPU features"))?;
    let mut vcpus = Vec::new();
    for id in 0..count {
        let vcpu = fd.create_vcpu(id.into()).map_err(kvm_error("a vCPU"))?;
        vcpu.set_cpuid2(&cpuid::for_vcpu(&offered, id, count)).map_err(kvm_error("the CPU features"))?;
        registers::set(&vcpu, id, entry)?;
        vcpus.push(vcpu);
    }
    Ok(vcpus)
}

fn event_fd() -> Result<EventFd, BuildError> {
    EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).map_err(host_error("an event descriptor"))
}

fn irq_line(fd: &VmFd, irq: u32) -> Result<EventFd, BuildError> {
    let line = event_fd()?;
    fd.register_irqfd(&line, irq).map_err(kvm_error("an interrupt line"))?;
    Ok(line)
}

/// Gives device number `index` its registers, its interrupt and a notifier per queue.
fn wire(
    fd: &VmFd,
    device: Box<dyn Device>,
    index: u16,
    mem: &GuestMem,
    reactor: &Arc<Reactor>,
) -> Result<(SharedTransport, Vec<EventFd>), BuildError> {
    let irq = IrqFd(irq_line(fd, IRQ_VIRTIO + u32::from(index))?);
    let poller = Arc::new(DevicePoller::new(Arc::clone(reactor), index));
    let transport = MmioTransport::new(device, mem.clone(), Box::new(irq), poller);
    let notify = IoEventAddress::Mmio(VIRTIO_MMIO + u64::from(index) * MMIO_SIZE + QUEUE_NOTIFY_OFFSET);
    let mut notifiers = Vec::new();
    for queue in 0..transport.queue_count() {
        let notifier = event_fd()?;
        fd.register_ioevent(&notifier, &notify, u32::from(queue)).map_err(kvm_error("a queue notifier"))?;
        reactor.watch(&notifier, Source::Queue { device: index, queue }).map_err(host_error("an epoll entry"))?;
        notifiers.push(notifier);
    }
    Ok((Arc::new(Mutex::new(transport)), notifiers))
}
