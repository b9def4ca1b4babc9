//! The guest-physical address space and the interrupt lines: every number that two modules must agree on.
//!
//! ```text
//! 0x0000_0500  GDT                              0x000d_f000  VM generation id
//! 0x0000_7000  boot_params ("zero page")        0x000e_0000  ACPI tables, RSDP first
//! 0x0000_9000  page tables of the boot CPU      0x0010_0000  kernel, then free RAM
//! 0x0002_0000  kernel command line              ........     initramfs at the end of low RAM
//! 0xc000_0000  the hole: devices, local APIC, IOAPIC, the pages Intel's VMX wants
//! 0x1_0000_0000  RAM beyond 3 GiB
//! ```

/// The boot CPU's descriptor table.
pub(crate) const GDT: u64 = 0x500;
/// The kernel's `boot_params`.
pub(crate) const ZERO_PAGE: u64 = 0x7000;
/// Top of the boot CPU's page tables; [`PAGE_TABLES_LEN`] bytes.
pub(crate) const PAGE_TABLES: u64 = 0x9000;
/// One PML4, one PDPT, four directories: 4 GiB in 2 MiB pages.
pub(crate) const PAGE_TABLES_LEN: u64 = 6 * 0x1000;
/// The kernel's command line.
pub(crate) const CMDLINE: u64 = 0x2_0000;
/// What the kernel's own limit allows, with its terminating zero.
pub(crate) const CMDLINE_MAX: usize = 2048;
/// Where conventional memory ends in the memory map handed to the kernel.
pub(crate) const LOW_RAM_END: u64 = 0x9_fc00;
/// The page that holds the VM generation id.
pub(crate) const VM_GENERATION_ID: u64 = 0xd_f000;
/// Where a kernel looks for the RSDP; the tables follow it.
pub(crate) const ACPI_TABLES: u64 = 0xe_0000;
/// Where the tables must have ended.
pub(crate) const ACPI_TABLES_END: u64 = 0x10_0000;
/// Where high memory begins and kernels are loaded.
pub(crate) const HIGH_RAM: u64 = 0x10_0000;
/// Where the device hole begins.
pub(crate) const HOLE: u64 = 0xc000_0000;
/// Where the device hole ends and the rest of RAM begins.
pub(crate) const HOLE_END: u64 = 0x1_0000_0000;
/// The first virtio device's registers; one page each.
pub(crate) const VIRTIO_MMIO: u64 = 0xd000_0000;
/// The IOAPIC.
pub(crate) const IOAPIC: u32 = 0xfec0_0000;
/// The local APICs.
pub(crate) const LOCAL_APIC: u32 = 0xfee0_0000;
/// Three pages KVM wants on Intel, out of the guest's sight.
pub(crate) const TSS: usize = 0xfffb_d000;
/// One page KVM wants on Intel, out of the guest's sight.
pub(crate) const IDENTITY_MAP: u64 = 0xfffb_c000;

/// The serial port's ISA interrupt.
pub(crate) const IRQ_SERIAL: u32 = 4;
/// The first virtio device's interrupt.
pub(crate) const IRQ_VIRTIO: u32 = 5;
/// How many virtio devices fit before the ISA range ends.
pub(crate) const VIRTIO_DEVICES_MAX: u32 = 11;
/// The generic event device's power button line.
pub(crate) const IRQ_POWER_BUTTON: u32 = 16;
/// The generic event device's line for a new VM generation id.
pub(crate) const IRQ_GENERATION: u32 = 17;

/// The first serial port; eight registers.
pub(crate) const PORT_SERIAL: u16 = 0x3f8;
/// Where a dying kernel says so (the pvpanic device).
pub(crate) const PORT_PANIC: u16 = 0x505;
/// ACPI's sleep control register.
pub(crate) const PORT_SLEEP: u16 = 0x600;
/// ACPI's sleep status register.
pub(crate) const PORT_SLEEP_STATUS: u16 = 0x601;
/// ACPI's reset register.
pub(crate) const PORT_RESET: u16 = 0x602;
/// What the guest writes to [`PORT_RESET`].
pub(crate) const RESET_VALUE: u8 = 1;
/// The value of `\_S5`: the sleep type that means off.
pub(crate) const SLEEP_TYPE_OFF: u8 = 5;
