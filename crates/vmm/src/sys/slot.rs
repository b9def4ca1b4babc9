//! Memory slots: guest-physical ranges backed by our own memory.

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use virtio::GuestMem;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

/// Gives all of `mem` to `vm`, a slot per region. KVM keeps a VM until its last vCPU is closed, and vCPUs belong to threads
/// that nobody waits for; so `mem` must come from [`super::ram`], whose mappings are never undone.
pub(crate) fn set_all(vm: &VmFd, mem: &GuestMem) -> Result<(), kvm_ioctls::Error> {
    for (slot, region) in (0..).zip(mem.iter()) {
        let region = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
        };
        // SAFETY: the range is a mapping of ours of exactly this length that is never undone, as the contract above
        // says; regions of one `GuestMem` do not overlap.
        unsafe { vm.set_user_memory_region(region)? };
    }
    Ok(())
}
