//! What a VM has beside its vCPUs: the interrupt controllers and the clock its guest reads.

use kvm_bindings::{KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, kvm_clock_data, kvm_irqchip};
use kvm_ioctls::VmFd;
use serde::{Deserialize, Serialize};

/// Both PICs and the IOAPIC, in KVM's order.
const CHIPS: [u32; 3] = [KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_IRQCHIP_IOAPIC];

/// The VM's own state. There is no PIT: a guest of ours never had one.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(Default))]
#[serde(deny_unknown_fields)]
pub(crate) struct VmStateV1 {
    chips: [kvm_irqchip; CHIPS.len()],
    /// Nanoseconds since the guest's first instant; a restored guest goes on from here.
    clock_ns: u64,
}

impl VmStateV1 {
    /// Takes it from a VM whose vCPUs do not run.
    pub(crate) fn capture(vm: &VmFd) -> Result<Self, kvm_ioctls::Error> {
        let clock_ns = vm.get_clock()?.clock;
        let mut chips = CHIPS.map(|chip_id| kvm_irqchip { chip_id, ..kvm_irqchip::default() });
        chips.iter_mut().try_for_each(|chip| vm.get_irqchip(chip))?;
        Ok(Self { chips, clock_ns })
    }

    /// Gives it to a new VM that has its interrupt controllers.
    pub(crate) fn restore(&self, vm: &VmFd) -> Result<(), kvm_ioctls::Error> {
        for (chip, chip_id) in self.chips.iter().zip(CHIPS) {
            vm.set_irqchip(&kvm_irqchip { chip_id, ..*chip })?;
        }
        vm.set_clock(&kvm_clock_data { clock: self.clock_ns, ..kvm_clock_data::default() })
    }
}
