//! A vCPU's thread: runs the guest and answers its exits until the guest, or KVM, says that it is over.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kvm_bindings::kvm_cpuid_entry2;
use kvm_ioctls::{VcpuExit, VcpuFd};

use crate::bus::Bus;
use crate::events::{Event, Events};
use crate::jail::{Kind, confine};
use crate::parking::Parking;
use crate::ports::Ending;
use crate::sys::kick::Kickable;
use crate::x86::vcpu_state::VcpuStateV1;

/// From here on a pause is one that a guest's watchdogs could notice.
const NOTICEABLE: Duration = Duration::from_secs(1);

/// What all vCPUs of a VM share.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    /// What the guest sees of the machine.
    pub(crate) bus: Arc<Bus>,
    /// Whom to tell of the end.
    pub(crate) events: Arc<Events>,
    /// Where to stop when asked to.
    pub(crate) parking: Arc<Parking>,
    /// Which MSRs are part of a vCPU's state.
    pub(crate) msr_indices: Arc<[u32]>,
}

/// A vCPU that has its state, and what it was told about itself.
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) fd: VcpuFd,
    pub(crate) cpuid: Arc<[kvm_cpuid_entry2]>,
}

/// Starts the thread of vCPU `id`, for which nobody waits: it runs until the process ends, or says that it is over.
pub(crate) fn start(id: u8, mut vcpu: Vcpu, around: Surroundings) -> io::Result<()> {
    let thread = move || {
        let kickable = Kickable::new(&mut vcpu.fd);
        around.parking.arrive(usize::from(id));
        let confined = confine(Kind::Vcpu).map_err(|error| error.to_string());
        let ended = confined.and_then(|()| run(&mut vcpu, usize::from(id), &around));
        drop(kickable);
        let event = ended.unwrap_or_else(|message| Event::Fault { message: format!("vCPU {id}: {message}") });
        around.events.raise(event);
        around.parking.leave(usize::from(id));
    };
    thread::Builder::new().name(format!("vcpu{id}")).spawn(thread).map(drop)
}

/// Runs until the guest ends itself; an error is a sentence for a person.
fn run(vcpu: &mut Vcpu, id: usize, around: &Surroundings) -> Result<Event, String> {
    let Vcpu { fd: vcpu, cpuid } = vcpu;
    loop {
        if around.parking.wanted() {
            if let Some(ending) = settle(vcpu, &around.bus)? {
                return Ok(Event::Ended(ending));
            }
            let stopped = Instant::now();
            around.parking.stop_here(id, || VcpuStateV1::capture(vcpu, cpuid, &around.msr_indices));
            if stopped.elapsed() > NOTICEABLE {
                excuse(vcpu);
            }
        }
        match once(vcpu, &around.bus)? {
            Ran::Answered => {}
            // Cleared before the wish is looked at again, so a kick that comes in between is not lost.
            Ran::Interrupted => vcpu.set_kvm_immediate_exit(0),
            Ran::Ended(ending) => return Ok(Event::Ended(ending)),
        }
    }
}

/// Has the guest's clock say that it was stopped, so that its watchdogs do not take the pause for a hang.
fn excuse(vcpu: &VcpuFd) {
    if let Err(error) = vcpu.kvmclock_ctrl() {
        log::debug!("the guest was not told of its pause: {error}");
    }
}

/// Completes what the last exit began: KVM does so when the vCPU is entered again, and with the flag set it then returns
/// without running the guest. An access that crosses a page takes more than one round.
fn settle(vcpu: &mut VcpuFd, bus: &Bus) -> Result<Option<Ending>, String> {
    vcpu.set_kvm_immediate_exit(1);
    loop {
        match once(vcpu, bus)? {
            Ran::Interrupted => return Ok(None),
            Ran::Answered => {}
            Ran::Ended(ending) => return Ok(Some(ending)),
        }
    }
}

enum Ran {
    Answered,
    Interrupted,
    Ended(Ending),
}

fn once(vcpu: &mut VcpuFd, bus: &Bus) -> Result<Ran, String> {
    match vcpu.run() {
        Ok(exit) => Ok(answer(exit, bus)?.map_or(Ran::Answered, Ran::Ended)),
        Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => Ok(Ran::Interrupted),
        Err(error) => Err(format!("KVM_RUN failed: {error}")),
    }
}

fn answer(exit: VcpuExit<'_>, bus: &Bus) -> Result<Option<Ending>, String> {
    match exit {
        VcpuExit::IoIn(port, data) => bus.ports.read(port, data),
        VcpuExit::IoOut(port, data) => return Ok(bus.ports.write(port, data)),
        VcpuExit::MmioRead(address, data) => bus.read(address, data),
        VcpuExit::MmioWrite(address, data) => bus.write(address, data),
        VcpuExit::Intr | VcpuExit::IrqWindowOpen => {}
        VcpuExit::Shutdown => return Err("the guest's CPU met a triple fault".into()),
        VcpuExit::FailEntry(reason, cpu) => {
            return Err(format!("the host's CPU {cpu} refused to enter the guest (reason {reason:#x})"));
        }
        exit => return Err(format!("KVM stopped with {exit:?}")),
    }
    Ok(None)
}
