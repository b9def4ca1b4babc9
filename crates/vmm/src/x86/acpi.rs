//! The firmware tables: hardware-reduced ACPI, so that a stock kernel needs no PCI, PIC, PIT, RTC or keyboard
//! controller from us and finds its devices by description.
//!
//! ```text
//! RSDP -> XSDT -> FADT -> DSDT     devices: COM1, pvpanic, virtio-mmio, power button, VM generation id
//!              -> MADT             CPUs and the IOAPIC
//! ```

use acpi_tables::aml::{
    Arg, Device, EISAName, Equal, IO, If, Interrupt, Memory32Fixed, Method, Name, Notify, ONE, Package, Path,
    ResourceTemplate, Scope,
};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use virtio::{GuestMem, MMIO_SIZE};
use vm_memory::{Bytes, GuestAddress};

use crate::layout::{
    ACPI_TABLES, ACPI_TABLES_END, IOAPIC, IRQ_GENERATION, IRQ_POWER_BUTTON, IRQ_SERIAL, IRQ_VIRTIO, LOCAL_APIC,
    PORT_PANIC, PORT_RESET, PORT_SERIAL, PORT_SLEEP, PORT_SLEEP_STATUS, RESET_VALUE, SLEEP_TYPE_OFF, VIRTIO_MMIO,
    VM_GENERATION_ID,
};

const OEM: [u8; 6] = *b"FORKD ";
const OEM_TABLE: [u8; 8] = *b"FORKDVMM";
const OEM_REVISION: u32 = 1;
/// FADT `IAPC_BOOT_ARCH`: neither a VGA adapter nor a CMOS clock is there to be probed.
const NO_VGA_NO_RTC: u16 = (1 << 2) | (1 << 5);
const NOTIFY_BUTTON_OR_CHANGE: u8 = 0x80;

/// Why the tables could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AcpiError {
    /// They outgrew their place.
    #[error("the ACPI tables end at {end:#x}, beyond {ACPI_TABLES_END:#x}")]
    TooLong {
        /// Where they would end.
        end: u64,
    },
    /// Guest memory cannot be written.
    #[error("the ACPI tables cannot be written: {why}")]
    Memory {
        /// What the memory says.
        why: String,
    },
}

/// Writes tables that describe `vcpus` CPUs and `virtio_devices` devices.
pub(crate) fn write(mem: &GuestMem, vcpus: u8, virtio_devices: u32) -> Result<(), AcpiError> {
    let mut place = Placer { mem, next: ACPI_TABLES + Rsdp::len() as u64 };
    let dsdt = place.table(&dsdt(virtio_devices))?;
    let fadt = place.table(&bytes_of(&fadt(dsdt).finalize()))?;
    let madt = place.table(&bytes_of(&madt(vcpus)))?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = place.table(&bytes_of(&xsdt))?;
    mem.write_slice(&bytes_of(&Rsdp::new(OEM, xsdt)), GuestAddress(ACPI_TABLES))
        .map_err(|error| AcpiError::Memory { why: error.to_string() })
}

/// Puts tables one behind the other.
struct Placer<'a> {
    mem: &'a GuestMem,
    next: u64,
}

impl Placer<'_> {
    fn table(&mut self, bytes: &[u8]) -> Result<u64, AcpiError> {
        let start = self.next.next_multiple_of(16);
        let end = start + bytes.len() as u64;
        if end > ACPI_TABLES_END {
            return Err(AcpiError::TooLong { end });
        }
        self.mem
            .write_slice(bytes, GuestAddress(start))
            .map_err(|error| AcpiError::Memory { why: error.to_string() })?;
        self.next = end;
        Ok(start)
    }
}

fn bytes_of(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

const fn port_register(port: u16) -> (AddressSpace, u8, u8, AccessSize, u64) {
    (AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, port as u64)
}

fn fadt(dsdt: u64) -> FADTBuilder {
    let register = |port| {
        let (space, width, offset, access, address) = port_register(port);
        GAS::new(space, width, offset, access, address)
    };
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);
    fadt.iapc_boot_arch = NO_VGA_NO_RTC.into();
    fadt.reset_reg = register(PORT_RESET);
    fadt.reset_value = RESET_VALUE;
    fadt.sleep_control_reg = register(PORT_SLEEP);
    fadt.sleep_status_reg = register(PORT_SLEEP_STATUS);
    fadt.hypervisor_vendor_identity = u64::from_le_bytes(OEM_TABLE).into();
    fadt
}

fn madt(vcpus: u8) -> MADT {
    let mut madt = MADT::new(OEM, OEM_TABLE, OEM_REVISION, LocalInterruptController::Address(LOCAL_APIC));
    for id in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, IOAPIC, 0));
    madt
}

fn dsdt(virtio_devices: u32) -> Vec<u8> {
    let mut sdt = Sdt::new(*b"DSDT", 36, 2, OEM, OEM_TABLE, OEM_REVISION);
    let mut body = Vec::new();
    let off = Package::new(vec![&SLEEP_TYPE_OFF, &0_u8, &0_u8, &0_u8]);
    Name::new("_S5_".into(), &off).to_aml_bytes(&mut body);
    let mut devices = Devices(Vec::new());
    devices.serial();
    devices.panic();
    devices.power_button();
    devices.generation_id();
    devices.events();
    for index in 0..virtio_devices {
        devices.virtio(index);
    }
    Scope::new("\\_SB_".into(), vec![&devices]).to_aml_bytes(&mut body);
    sdt.append_slice(&body);
    sdt.as_slice().to_vec()
}

/// Devices as they are described, already in byte code: each entry of `\_SB`.
struct Devices(Vec<u8>);

impl Aml for Devices {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(&self.0);
    }
}

/// An edge-triggered line of the IOAPIC, nobody else's.
fn line(irq: u32) -> Interrupt {
    Interrupt::new(true, true, false, false, irq)
}

impl Devices {
    fn add(&mut self, name: &str, children: Vec<&dyn Aml>) {
        Device::new(Path::new(name), children).to_aml_bytes(&mut self.0);
    }

    fn serial(&mut self) {
        let (ports, irq) = (IO::new(PORT_SERIAL, PORT_SERIAL, 1, 8), line(IRQ_SERIAL));
        let id = Name::new("_HID".into(), &EISAName::new("PNP0501"));
        let number = Name::new("_UID".into(), &0_u8);
        let resources = Name::new("_CRS".into(), &ResourceTemplate::new(vec![&ports, &irq]));
        self.add("COM1", vec![&id, &number, &resources]);
    }

    /// The device of `pvpanic-mmio`, by the name every stock kernel knows it.
    fn panic(&mut self) {
        let port = IO::new(PORT_PANIC, PORT_PANIC, 1, 1);
        let id = Name::new("_HID".into(), &"QEMU0001");
        let resources = Name::new("_CRS".into(), &ResourceTemplate::new(vec![&port]));
        self.add("PEVT", vec![&id, &resources]);
    }

    fn power_button(&mut self) {
        let id = Name::new("_HID".into(), &EISAName::new("PNP0C0C"));
        let number = Name::new("_UID".into(), &0_u8);
        self.add("PWRB", vec![&id, &number]);
    }

    /// Sixteen bytes that change when the VM becomes another one; the kernel reseeds its generator when told.
    fn generation_id(&mut self) {
        let address = Package::new(vec![&VM_GENERATION_ID, &0_u8]);
        let id = Name::new("_HID".into(), &"VMGENCTR");
        let compatible = Name::new("_CID".into(), &"VM_Gen_Counter");
        let description = Name::new("_DDN".into(), &"VM_Gen_Counter");
        let address = Name::new("ADDR".into(), &address);
        self.add("VGEN", vec![&id, &compatible, &description, &address]);
    }

    /// The generic event device: each line means one thing, so the handler reads no register.
    fn events(&mut self) {
        let (button, generation) = (line(IRQ_POWER_BUTTON), line(IRQ_GENERATION));
        let id = Name::new("_HID".into(), &"ACPI0013");
        let number = Name::new("_UID".into(), &0_u8);
        let resources = Name::new("_CRS".into(), &ResourceTemplate::new(vec![&button, &generation]));
        let (button_path, generation_path) = (Path::new("PWRB"), Path::new("VGEN"));
        let press = Notify::new(&button_path, &NOTIFY_BUTTON_OR_CHANGE);
        let change = Notify::new(&generation_path, &NOTIFY_BUTTON_OR_CHANGE);
        let is_button = Equal::new(&Arg(0), &IRQ_POWER_BUTTON);
        let is_generation = Equal::new(&Arg(0), &IRQ_GENERATION);
        let on_button = If::new(&is_button, vec![&press]);
        let on_generation = If::new(&is_generation, vec![&change]);
        let handler = Method::new("_EVT".into(), 1, true, vec![&on_button, &on_generation]);
        self.add("GED_", vec![&id, &number, &resources, &handler]);
    }

    fn virtio(&mut self, index: u32) {
        let base = VIRTIO_MMIO + u64::from(index) * MMIO_SIZE;
        let below_4_gib = "the window begins at 3.25 GiB and holds a handful of pages";
        let (base, size) = (u32::try_from(base).expect(below_4_gib), u32::try_from(MMIO_SIZE).expect(below_4_gib));
        let (registers, irq) = (Memory32Fixed::new(true, base, size), line(IRQ_VIRTIO + index));
        let id = Name::new("_HID".into(), &"LNRO0005");
        let number = Name::new("_UID".into(), &index);
        let coherent = Name::new("_CCA".into(), &ONE);
        let resources = Name::new("_CRS".into(), &ResourceTemplate::new(vec![&registers, &irq]));
        self.add(&format!("V{index:03}"), vec![&id, &number, &coherent, &resources]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table_at(mem: &GuestMem, address: u64) -> Vec<u8> {
        let length: u32 = mem.read_obj(GuestAddress(address + 4)).unwrap();
        let mut bytes = vec![0; length as usize];
        mem.read_slice(&mut bytes, GuestAddress(address)).unwrap();
        assert_eq!(bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0, "checksum");
        bytes
    }

    #[test]
    fn a_kernel_finds_every_table_from_the_rsdp() {
        let mem = crate::memory::map("128M".parse().unwrap()).unwrap().mem;
        write(&mem, 32, 11).unwrap();
        let mut rsdp = [0; 36];
        mem.read_slice(&mut rsdp, GuestAddress(ACPI_TABLES)).unwrap();
        assert_eq!(&rsdp[..8], b"RSD PTR ");
        let xsdt = table_at(&mem, u64::from_le_bytes(rsdp[24..32].try_into().unwrap()));
        let entries: Vec<Vec<u8>> = xsdt[36..]
            .chunks_exact(8)
            .map(|entry| table_at(&mem, u64::from_le_bytes(entry.try_into().unwrap())))
            .collect();
        assert_eq!(entries.iter().map(|table| &table[..4]).collect::<Vec<_>>(), [b"FACP", b"APIC"]);
        let dsdt = table_at(&mem, u64::from_le_bytes(entries[0][140..148].try_into().unwrap()));
        for name in ["DSDT", "COM1", "PEVT", "PWRB", "VGEN", "GED_", "V000", "V010", "LNRO0005"] {
            assert!(dsdt.windows(name.len()).any(|window| window == name.as_bytes()), "{name} is not described");
        }
        assert_eq!(entries[1].len(), 44 + 32 * 8 + 12);
    }
}
