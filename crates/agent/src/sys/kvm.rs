//! A vCPU of the emulated host that never runs.
//!
//! KVM patches its own code when the last local APIC that is off goes away and when the next one comes, which is with
//! nearly every VM. QEMU, when another CPU runs into the breakpoint that such a patch puts up for an instant, may keep
//! the breakpoint's translation for ever, and the CPU never gets past it. While one local APIC stays off there is
//! nothing to patch.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use super::check;

/// `_IO(0xAE, 0x01)`: a new VM's descriptor; the argument is its type, 0 on x86.
const KVM_CREATE_VM: libc::Ioctl = 0xae01;
/// `_IO(0xAE, 0x60)`: interrupt controllers in the kernel, so that each vCPU has a local APIC there.
const KVM_CREATE_IRQCHIP: libc::Ioctl = 0xae60;
/// `_IO(0xAE, 0x41)`: a new vCPU's descriptor; the argument is its number.
const KVM_CREATE_VCPU: libc::Ioctl = 0xae41;

/// A vCPU as it is after a reset, its local APIC off, as long as this lives.
#[derive(Debug)]
pub(crate) struct SleepingVcpu {
    _kvm: File,
    _vm: OwnedFd,
    _vcpu: OwnedFd,
}

impl SleepingVcpu {
    pub(crate) fn new() -> io::Result<Self> {
        let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm")?;
        let vm = descriptor(request(&kvm, KVM_CREATE_VM)?);
        request(&vm, KVM_CREATE_IRQCHIP)?;
        let vcpu = descriptor(request(&vm, KVM_CREATE_VCPU)?);
        Ok(Self { _kvm: kvm, _vm: vm, _vcpu: vcpu })
    }
}

/// One of the requests above, with the argument 0.
fn request(device: impl AsFd, request: libc::Ioctl) -> io::Result<c_int> {
    // SAFETY: each of the requests takes a number and touches no memory of ours.
    let answer = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), request, 0) };
    check(answer).map(|()| answer)
}

fn descriptor(answer: c_int) -> OwnedFd {
    // SAFETY: KVM has just made this descriptor for us, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(answer) }
}
