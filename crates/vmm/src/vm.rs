//! A running VM: booted from a kernel, or restored from what was frozen.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvm_ioctls::{Kvm, VmFd};
use proto::control::{DiskAccess, VmSpec};

use crate::assembly::{self, BuildError, Wired, host_error, kvm_error};
use crate::bus::{Bus, lock};
use crate::console::ConsoleLog;
use crate::devices::{Devices, Disk, Parts};
use crate::events::Events;
use crate::frozen::{DiskKind, Frozen, ShapeV1};
use crate::kernel::BootFiles;
use crate::layout::{IRQ_GENERATION, IRQ_POWER_BUTTON, IRQ_SERIAL};
use crate::memory::{self, GuestRam};
use crate::parking::Parking;
use crate::ports::Ports;
use crate::reactor::Reactor;
use crate::stages::Stages;
use crate::sys::fork;
use crate::template::Template;
use crate::vcpu::Vcpu;
use crate::x86::ready_vcpu::ReadyVcpu;
use crate::x86::{acpi, cpuid, registers, vcpu_state};
use crate::{generation, jail, kernel, vcpu};

/// A VM whose vCPUs run. Their threads run until the process ends, whatever becomes of this.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) kvm: Arc<Kvm>,
    pub(crate) fd: VmFd,
    pub(crate) shape: ShapeV1,
    pub(crate) ram: GuestRam,
    pub(crate) devices: Wired,
    pub(crate) disks: Vec<Disk>,
    pub(crate) bus: Arc<Bus>,
    pub(crate) parking: Arc<Parking>,
    /// Which MSRs are part of a vCPU's state.
    pub(crate) msr_indices: Arc<[u32]>,
    /// What it is, for as long as it is paused.
    pub(crate) paused: Option<Arc<Frozen>>,
}

impl Vm {
    /// Boots a kernel. What happens to the vCPUs is raised in `events`.
    pub(crate) fn boot(
        spec: &VmSpec,
        taps: Vec<OwnedFd>,
        reactor: &Arc<Reactor>,
        events: &Arc<Events>,
    ) -> Result<Self, BuildError> {
        let kvm = Kvm::new().map_err(|source| BuildError::Open { source })?;
        let ram = memory::map(spec.memory)?;
        let mem = &ram.mem;
        let files = BootFiles::open(&spec.kernel, spec.initramfs.as_deref())?;
        let parts = Parts::new(spec, taps)?;
        let console =
            File::create(&spec.console).map_err(|source| BuildError::Console { path: spec.console.clone(), source })?;
        // Everything is open, nothing was looked into, and nothing of the guest's has run.
        jail::enter_as_vm(spec.uid)?;
        let entry = kernel::load(mem, files, &spec.cmdline)?;
        registers::write_tables(mem)?;
        generation::write_new(mem).map_err(host_error("a VM generation id"))?;
        let devices = parts.build()?;
        let count = u32::try_from(devices.virtio.len()).unwrap_or(u32::MAX);
        acpi::write(mem, spec.vcpus.get(), count)?;

        let fd = assembly::create_vm(&kvm, mem, &mut Stages::start())?;
        let vcpus = boot_vcpus(&kvm, &fd, spec.vcpus.get(), entry)?;
        let wired = assembly::wire_all(&fd, devices.virtio, None, mem, reactor)?;
        let ports = Ports::new(assembly::irq_line(&fd, IRQ_SERIAL)?, ConsoleLog::new(console));
        let msr_indices = vcpu_state::msr_indices(&kvm).map_err(kvm_error("its list of MSRs"))?.into();
        let kvm = Arc::new(kvm);
        let assembled = Assembled { kvm, fd, shape: shape(spec), ram, wired, disks: devices.disks, ports };
        assembled.run(vcpus, msr_indices, events)
    }

    /// Goes on from where a VM was frozen, as a VM of a new generation.
    pub(crate) fn restore(
        from: &Template,
        devices: Devices,
        console: File,
        reactor: &Arc<Reactor>,
        events: &Arc<Events>,
        stages: &mut Stages,
    ) -> Result<Self, BuildError> {
        let (frozen, ram) = (&from.frozen, from.ram.clone());
        let mem = &ram.mem;
        let fd = assembly::create_vm(&from.kvm, mem, stages)?;
        let vcpus = restore_vcpus(&fd, from, stages)?;
        frozen.vm.restore(&fd).map_err(kvm_error("the saved interrupt controllers and clock"))?;
        stages.done("state");
        let wired = assembly::wire_all(&fd, devices.virtio, Some(&frozen.devices), mem, reactor)?;
        let serial = assembly::irq_line(&fd, IRQ_SERIAL)?;
        let ports = Ports::restore(&frozen.serial, serial, ConsoleLog::new(console))
            .map_err(host_error("the serial port's state"))?;
        generation::write_new(mem).map_err(host_error("a VM generation id"))?;
        assembly::interrupt(&fd, IRQ_GENERATION).map_err(kvm_error("an interrupt"))?;
        stages.done("wiring");
        let (kvm, shape) = (Arc::clone(&from.kvm), frozen.shape.clone());
        let assembled = Assembled { kvm, fd, shape, ram, wired, disks: devices.disks, ports };
        assembled.run(vcpus, Arc::clone(&from.msr_indices), events)
    }

    /// Presses the power button.
    pub(crate) fn press_power_button(&self) -> io::Result<()> {
        assembly::interrupt(&self.fd, IRQ_POWER_BUTTON).map_err(io::Error::from)
    }

    /// The kernel's last words, if it had any.
    pub(crate) fn panic_reason(&self) -> Option<String> {
        self.bus.ports.panic_reason()
    }

    /// The guest notified a queue.
    pub(crate) fn queue_notified(&self, device: u16, queue: u16) {
        let Wired { transports, notifiers } = &self.devices;
        let (Some(transport), Some(notifier)) = (
            transports.get(usize::from(device)),
            notifiers.get(usize::from(device)).and_then(|queues| queues.get(usize::from(queue))),
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
        if let Some(transport) = self.devices.transports.get(usize::from(device)) {
            lock(transport).host_ready(token, ready);
        }
    }
}

/// A VM without threads.
struct Assembled {
    kvm: Arc<Kvm>,
    fd: VmFd,
    shape: ShapeV1,
    ram: GuestRam,
    wired: Wired,
    disks: Vec<Disk>,
    ports: Ports,
}

impl Assembled {
    fn run(self, mut vcpus: Vec<Vcpu>, msr_indices: Arc<[u32]>, events: &Arc<Events>) -> Result<Vm, BuildError> {
        for vcpu in &mut vcpus {
            fork::withhold(&mut vcpu.fd, &self.fd).map_err(host_error("a page of its own for a vCPU"))?;
        }
        let bus = Arc::new(Bus::new(self.ports, self.wired.transports.clone()));
        let parking = Arc::new(Parking::new(vcpus.len()));
        let around = vcpu::Surroundings {
            bus: Arc::clone(&bus),
            events: Arc::clone(events),
            parking: Arc::clone(&parking),
            msr_indices: Arc::clone(&msr_indices),
        };
        for (vcpu, id) in vcpus.into_iter().zip(0..) {
            vcpu::start(id, vcpu, around.clone()).map_err(host_error("a vCPU thread"))?;
        }
        let Self { kvm, fd, shape, ram, wired: devices, disks, .. } = self;
        Ok(Vm { kvm, fd, shape, ram, devices, disks, bus, parking, msr_indices, paused: None })
    }
}

fn shape(spec: &VmSpec) -> ShapeV1 {
    let kind = |access: &DiskAccess| match access {
        DiskAccess::ReadOnly => DiskKind::ReadOnly,
        DiskAccess::PrivateTop { .. } => DiskKind::Private,
    };
    ShapeV1 {
        vcpus: spec.vcpus,
        memory: spec.memory,
        disks: spec.disks.iter().map(|disk| kind(&disk.access)).collect(),
        net: spec.net,
        cid: spec.vsock.cid,
    }
}

fn boot_vcpus(kvm: &Kvm, fd: &VmFd, count: u8, entry: u64) -> Result<Vec<Vcpu>, BuildError> {
    let offered = cpuid::offered(kvm).map_err(kvm_error("its CPU features"))?;
    let mut vcpus = Vec::new();
    for id in 0..count {
        let vcpu = fd.create_vcpu(id.into()).map_err(kvm_error("a vCPU"))?;
        let cpuid = cpuid::for_vcpu(&offered, id, count);
        vcpu.set_cpuid2(&cpuid).map_err(kvm_error("the CPU features"))?;
        registers::set(&vcpu, id, entry)?;
        vcpus.push(Vcpu { fd: vcpu, cpuid: cpuid.as_slice().into() });
    }
    Ok(vcpus)
}

/// All of them exist before the first has its state: a local APIC is told of the others.
fn restore_vcpus(fd: &VmFd, from: &Template, stages: &mut Stages) -> Result<Vec<Vcpu>, BuildError> {
    let create = |(ready, id): (&ReadyVcpu, u64)| {
        let fd = fd.create_vcpu(id).map_err(kvm_error("a vCPU"))?;
        Ok(Vcpu { fd, cpuid: Arc::clone(&ready.promised) })
    };
    let vcpus: Vec<Vcpu> = from.vcpus.iter().zip(0..).map(create).collect::<Result<_, BuildError>>()?;
    stages.done("vcpu");
    for (index, (vcpu, (ready, state))) in vcpus.iter().zip(from.vcpus.iter().zip(&from.frozen.vcpus)).enumerate() {
        ready.restore(state, &vcpu.fd).map_err(|source| BuildError::Vcpu { vcpu: index, source })?;
    }
    Ok(vcpus)
}
