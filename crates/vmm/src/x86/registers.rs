//! The state a CPU starts in: flat 64-bit mode with the first 4 GiB mapped to themselves, as the 64-bit boot protocol
//! asks of the boot CPU. The others wait for their start-up interrupt, which KVM handles.

use kvm_bindings::{Msrs, kvm_msr_entry, kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use virtio::GuestMem;
use vm_memory::{Bytes, GuestAddress};

use crate::layout::{GDT, PAGE_TABLES, PAGE_TABLES_LEN, ZERO_PAGE};

const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const PAGE_PRESENT_WRITABLE: u64 = 3;
const PAGE_HUGE: u64 = 1 << 7;

const MSR_MISC_ENABLE: u32 = 0x1a0;
const MISC_ENABLE_FAST_STRING: u64 = 1;
const MSR_MTRR_DEF_TYPE: u32 = 0x2ff;
const MTRR_ENABLE_WRITE_BACK: u64 = (1 << 11) | 6;

const APIC_LVT_LINT0: usize = 0x350;
const APIC_LVT_LINT1: usize = 0x360;
const APIC_MODE_EXTINT: u32 = 7 << 8;
const APIC_MODE_NMI: u32 = 4 << 8;

/// Which register set could not be given to a vCPU.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistersError {
    /// An ioctl failed.
    #[error("vCPU {vcpu}: {what} cannot be set: {source}")]
    Ioctl {
        /// Which vCPU.
        vcpu: u8,
        /// Which registers.
        what: &'static str,
        /// What KVM says.
        source: kvm_ioctls::Error,
    },
    /// KVM took only some of the MSRs.
    #[error("vCPU {vcpu}: KVM refused the model-specific register {msr:#x}")]
    Msr {
        /// Which vCPU.
        vcpu: u8,
        /// Which register.
        msr: u32,
    },
    /// Guest memory cannot be written.
    #[error("the boot page tables cannot be written: {why}")]
    Memory {
        /// What the memory says.
        why: String,
    },
}

/// A segment descriptor as the GDT holds it and as KVM wants it told.
#[derive(Clone, Copy)]
struct Segment {
    access: u8,
    flags: u8,
}

impl Segment {
    const CODE_64: Self = Self { access: 0x9b, flags: 0xa };
    const DATA: Self = Self { access: 0x93, flags: 0xc };
    const TSS: Self = Self { access: 0x8b, flags: 0x8 };

    fn descriptor(self) -> u64 {
        let (access, flags) = (u64::from(self.access), u64::from(self.flags));
        0xffff | (access << 40) | (0xf << 48) | (flags << 52)
    }

    fn loaded(self, selector: u16) -> kvm_segment {
        let (access, flags) = (self.access, self.flags);
        kvm_segment {
            base: 0,
            limit: 0xffff_ffff,
            selector,
            type_: access & 0xf,
            s: (access >> 4) & 1,
            dpl: (access >> 5) & 3,
            present: access >> 7,
            avl: flags & 1,
            l: (flags >> 1) & 1,
            db: (flags >> 2) & 1,
            g: flags >> 3,
            ..kvm_segment::default()
        }
    }
}

/// Writes the descriptor table and the page tables the boot CPU starts with.
pub(crate) fn write_tables(mem: &GuestMem) -> Result<(), RegistersError> {
    let write = |value: u64, address: u64| {
        mem.write_obj(value, GuestAddress(address)).map_err(|error| RegistersError::Memory { why: error.to_string() })
    };
    // The selectors the boot protocol names: 0x10 code, 0x18 data.
    let gdt = [0, 0, Segment::CODE_64.descriptor(), Segment::DATA.descriptor(), Segment::TSS.descriptor()];
    for (address, descriptor) in (GDT..).step_by(8).zip(gdt) {
        write(descriptor, address)?;
    }
    let (pdpt, directories) = (PAGE_TABLES + 0x1000, PAGE_TABLES + 0x2000);
    write(pdpt | PAGE_PRESENT_WRITABLE, PAGE_TABLES)?;
    for gib in 0..(PAGE_TABLES_LEN / 0x1000 - 2) {
        write((directories + gib * 0x1000) | PAGE_PRESENT_WRITABLE, pdpt + gib * 8)?;
        for page in 0..512 {
            let physical = (gib << 30) | (page << 21);
            write(physical | PAGE_PRESENT_WRITABLE | PAGE_HUGE, directories + gib * 0x1000 + page * 8)?;
        }
    }
    Ok(())
}

/// Gives vCPU `id` its first state; only the boot CPU (0) is told where to start.
pub(crate) fn set(vcpu: &VcpuFd, id: u8, entry: u64) -> Result<(), RegistersError> {
    let failed = |what| move |source| RegistersError::Ioctl { vcpu: id, what, source };
    set_msrs(vcpu, id)?;
    set_lapic(vcpu).map_err(failed("the local APIC"))?;
    if id == 0 {
        set_long_mode(vcpu).map_err(failed("the segment and control registers"))?;
        let regs = kvm_regs { rip: entry, rsi: ZERO_PAGE, rsp: ZERO_PAGE - 16, rflags: 2, ..kvm_regs::default() };
        vcpu.set_regs(&regs).map_err(failed("the general registers"))?;
    }
    Ok(())
}

/// Flat 64-bit mode over the tables of [`write_tables`].
pub(crate) fn set_long_mode(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut sregs = vcpu.get_sregs()?;
    sregs.gdt.base = GDT;
    sregs.gdt.limit = 5 * 8 - 1;
    sregs.cs = Segment::CODE_64.loaded(0x10);
    let data = Segment::DATA.loaded(0x18);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = Segment::TSS.loaded(0x20);
    sregs.cr0 = CR0_PE | CR0_ET | CR0_PG;
    sregs.cr3 = PAGE_TABLES;
    sregs.cr4 = CR4_PAE;
    sregs.efer = EFER_LME | EFER_LMA;
    vcpu.set_sregs(&sregs)
}

fn set_msrs(vcpu: &VcpuFd, id: u8) -> Result<(), RegistersError> {
    let entry = |index, data| kvm_msr_entry { index, data, ..kvm_msr_entry::default() };
    let entries = [entry(MSR_MISC_ENABLE, MISC_ENABLE_FAST_STRING), entry(MSR_MTRR_DEF_TYPE, MTRR_ENABLE_WRITE_BACK)];
    let msrs = Msrs::from_entries(&entries).expect("two entries fit");
    let accepted = vcpu.set_msrs(&msrs).map_err(|source| RegistersError::Ioctl {
        vcpu: id,
        what: "the model-specific registers",
        source,
    })?;
    match entries.get(accepted) {
        Some(refused) => Err(RegistersError::Msr { vcpu: id, msr: refused.index }),
        None => Ok(()),
    }
}

/// Wires the APIC's two pins as firmware would: LINT0 to the PIC, LINT1 to NMI.
fn set_lapic(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut lapic = vcpu.get_lapic()?;
    for (register, mode) in [(APIC_LVT_LINT0, APIC_MODE_EXTINT), (APIC_LVT_LINT1, APIC_MODE_NMI)] {
        for (byte, value) in lapic.regs[register..register + 4].iter_mut().zip(mode.to_le_bytes()) {
            *byte = i8::from_le_bytes([value]);
        }
    }
    vcpu.set_lapic(&lapic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_are_the_flat_ones() {
        assert_eq!(Segment::CODE_64.descriptor(), 0x00af_9b00_0000_ffff);
        assert_eq!(Segment::DATA.descriptor(), 0x00cf_9300_0000_ffff);
        let code = Segment::CODE_64.loaded(0x10);
        assert_eq!((code.type_, code.s, code.present, code.l, code.db, code.g), (11, 1, 1, 1, 0, 1));
    }

    #[test]
    fn the_page_tables_map_four_gib_to_themselves() {
        let mem = crate::memory::map("128M".parse().unwrap()).unwrap().mem;
        write_tables(&mem).unwrap();
        let at = |address| mem.read_obj::<u64>(GuestAddress(address)).unwrap();
        assert_eq!(at(PAGE_TABLES), (PAGE_TABLES + 0x1000) | 3);
        assert_eq!(at(PAGE_TABLES + 0x1000 + 3 * 8), (PAGE_TABLES + 0x5000) | 3);
        assert_eq!(at(PAGE_TABLES + 0x5000 + 511 * 8), 0xffe0_0083);
    }
}
