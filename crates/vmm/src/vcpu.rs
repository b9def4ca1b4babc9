//! A vCPU's thread: runs the guest and answers its exits until the guest, or KVM, says that it is over.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use kvm_ioctls::{VcpuExit, VcpuFd};

use crate::bus::Bus;
use crate::events::{Event, Events};
use crate::ports::Ending;

/// Starts the thread of vCPU `id`.
pub(crate) fn start(id: u8, vcpu: VcpuFd, bus: Arc<Bus>, events: Arc<Events>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(format!("vcpu{id}")).spawn(move || {
        let event = run(vcpu, &bus).unwrap_or_else(|message| Event::Fault { message: format!("vCPU {id}: {message}") });
        events.raise(event);
    })
}

/// Runs until the guest ends itself; an error is a sentence for a person.
fn run(mut vcpu: VcpuFd, bus: &Bus) -> Result<Event, String> {
    loop {
        let ending = match vcpu.run() {
            Ok(exit) => answer(exit, bus)?,
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => None,
            Err(error) => return Err(format!("KVM_RUN failed: {error}")),
        };
        if let Some(ending) = ending {
            return Ok(Event::Ended(ending));
        }
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
