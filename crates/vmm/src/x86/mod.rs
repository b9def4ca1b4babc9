//! What a stock x86_64 kernel expects of its CPUs and firmware.

pub(crate) mod acpi;
pub(crate) mod cpuid;
pub(crate) mod registers;
