//! Vector registers.

use kvm_bindings::kvm_xsave;
use kvm_ioctls::VcpuFd;

/// Gives a vCPU its vector registers.
pub(crate) fn set(vcpu: &VcpuFd, xsave: &kvm_xsave) -> Result<(), kvm_ioctls::Error> {
    // SAFETY: the kernel reads more than these 4096 bytes only for a process that asked for dynamic features, which this
    // program never does.
    unsafe { vcpu.set_xsave(xsave) }
}
