//! What a stock x86_64 kernel expects of its CPUs and firmware, and all that KVM knows of them.

pub(crate) mod acpi;
pub(crate) mod cpuid;
pub(crate) mod features;
pub(crate) mod ready_vcpu;
pub(crate) mod registers;
pub(crate) mod vcpu_state;
pub(crate) mod vm_state;
