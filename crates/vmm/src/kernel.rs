//! Puts a stock kernel, its initramfs and its command line into guest memory, by Linux's 64-bit boot protocol.
//!
//! A bzImage is entered at its 64-bit entry point and unpacks itself; an ELF vmlinux is entered where it says.
//!
//! Files are opened first and looked into later: between the two their process enters the jail.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::{BzImage, Elf, KernelLoader};
use virtio::GuestMem;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use crate::host_file;
use crate::layout::{ACPI_TABLES, CMDLINE, CMDLINE_MAX, HIGH_RAM, HOLE, LOW_RAM_END, ZERO_PAGE};

/// The protocol's 64-bit entry point, counted from where the kernel was loaded.
const BZIMAGE_ENTRY_64: u64 = 0x200;
/// `xloadflags`: the image has a 64-bit entry point.
const XLF_KERNEL_64: u16 = 1;
/// `type_of_loader` for a loader without a registered number.
const LOADER_UNDEFINED: u8 = 0xff;
/// An image larger than this is not a kernel.
const KERNEL_MAX: u64 = 1 << 30;
const E820_RAM: u32 = 1;
const E820_RESERVED: u32 = 2;
const PAGE: u64 = 0x1000;

/// Why a kernel cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Neither a bzImage nor an ELF vmlinux.
    #[error("{} is not a kernel: {why}", path.display())]
    NotAKernel {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Kernel and initramfs do not fit.
    #[error(
        "the kernel and its initramfs need {needed_mib} MiB of low memory, the guest has {have_mib} MiB; give it more with --memory"
    )]
    NoRoom {
        /// What they need.
        needed_mib: u64,
        /// What there is.
        have_mib: u64,
    },
    /// The command line is too long.
    #[error("the kernel command line has {len} bytes, the kernel takes {CMDLINE_MAX}")]
    Cmdline {
        /// Its length.
        len: usize,
    },
    /// Writing to guest memory failed.
    #[error("guest memory cannot be written: {why}")]
    Memory {
        /// What the memory says.
        why: String,
    },
}

fn memory_error(error: impl std::fmt::Display) -> KernelError {
    KernelError::Memory { why: error.to_string() }
}

/// A kernel in memory.
#[derive(Debug)]
struct Loaded {
    entry: u64,
    /// No byte of the kernel, unpacked and with its own data, lies at or beyond this address.
    end: u64,
    header: setup_header,
}

/// A file of the host's, open.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: File,
}

impl Opened {
    fn new(path: &Path) -> Result<Self, KernelError> {
        let file = host_file::open_regular(path).map_err(|source| KernelError::Read { path: path.into(), source })?;
        Ok(Self { path: path.into(), file })
    }
}

/// What a VM boots from, open and not looked into.
#[derive(Debug)]
pub(crate) struct BootFiles {
    kernel: Opened,
    initramfs: Option<Opened>,
}

impl BootFiles {
    pub(crate) fn open(kernel: &Path, initramfs: Option<&Path>) -> Result<Self, KernelError> {
        Ok(Self { kernel: Opened::new(kernel)?, initramfs: initramfs.map(Opened::new).transpose()? })
    }
}

/// Loads everything and returns where the boot CPU begins.
pub(crate) fn load(mem: &GuestMem, files: BootFiles, cmdline: &str) -> Result<u64, KernelError> {
    let mut loaded = load_kernel(mem, files.kernel)?;
    let low_end = low_ram_end(mem);
    if loaded.end > low_end {
        return Err(KernelError::NoRoom { needed_mib: (loaded.end >> 20) + 1, have_mib: low_end >> 20 });
    }
    if let Some(initramfs) = files.initramfs {
        load_initramfs(mem, initramfs, &mut loaded, low_end)?;
    }
    if cmdline.len() >= CMDLINE_MAX || cmdline.as_bytes().contains(&0) {
        return Err(KernelError::Cmdline { len: cmdline.len() });
    }
    mem.write_slice(cmdline.as_bytes(), GuestAddress(CMDLINE)).map_err(memory_error)?;
    mem.write_obj(0_u8, GuestAddress(CMDLINE + cmdline.len() as u64)).map_err(memory_error)?;
    write_zero_page(mem, loaded.header)?;
    Ok(loaded.entry)
}

fn load_kernel(mem: &GuestMem, kernel: Opened) -> Result<Loaded, KernelError> {
    let Opened { path, mut file } = kernel;
    let read = |source| KernelError::Read { path: path.clone(), source };
    let not = |why: &str| KernelError::NotAKernel { path: path.clone(), why: why.into() };
    let length = file.metadata().map_err(read)?.len();
    if length > KERNEL_MAX {
        return Err(not("it is larger than 1 GiB"));
    }
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(|_| not("it is too short"))?;
    file.seek(SeekFrom::Start(0)).map_err(read)?;
    if magic == *b"\x7fELF" {
        return load_vmlinux(mem, &mut file).map_err(|why| not(&why));
    }
    let found = BzImage::load(mem, None, &mut file, Some(GuestAddress(HIGH_RAM)))
        .map_err(|error| not(&format!("neither an ELF vmlinux nor a bzImage ({error})")))?;
    let header = found.setup_header.ok_or_else(|| not("it has no set-up header"))?;
    if header.version < 0x020c || header.xloadflags & XLF_KERNEL_64 == 0 {
        return Err(not("it has no 64-bit entry point"));
    }
    let start = found.kernel_load.0;
    let unpacked_end = header.pref_address.max(start).saturating_add(header.init_size.into());
    Ok(Loaded { entry: start + BZIMAGE_ENTRY_64, end: unpacked_end.max(found.kernel_end), header })
}

fn load_vmlinux(mem: &GuestMem, file: &mut File) -> Result<Loaded, String> {
    let found = Elf::load(mem, None, file, Some(GuestAddress(HIGH_RAM))).map_err(|error| error.to_string())?;
    let header = setup_header {
        boot_flag: 0xaa55,
        header: u32::from_le_bytes(*b"HdrS"),
        kernel_alignment: 0x100_0000,
        ..setup_header::default()
    };
    // The file does not say how much the kernel needs beyond itself (bss, early allocations): leave it as much again.
    Ok(Loaded { entry: found.kernel_load.0, end: found.kernel_end.saturating_add(32 << 20), header })
}

fn load_initramfs(mem: &GuestMem, initramfs: Opened, loaded: &mut Loaded, low_end: u64) -> Result<(), KernelError> {
    let Opened { path, mut file } = initramfs;
    let read = |source| KernelError::Read { path: path.clone(), source };
    let length = file.metadata().map_err(read)?.len();
    let limit = match loaded.header.initrd_addr_max {
        0 => low_end,
        max => low_end.min(u64::from(max) + 1),
    };
    let start = limit.checked_sub(length).map(|start| start & !(PAGE - 1)).filter(|start| *start >= loaded.end);
    let (Some(start), Ok(short_length)) = (start, u32::try_from(length)) else {
        return Err(KernelError::NoRoom {
            needed_mib: (loaded.end.saturating_add(length) >> 20) + 1,
            have_mib: low_end >> 20,
        });
    };
    mem.read_exact_volatile_from(GuestAddress(start), &mut file, short_length as usize)
        .map_err(|error| read(io::Error::other(error.to_string())))?;
    // Below 4 GiB by construction: `limit` is at most the end of low RAM.
    loaded.header.ramdisk_image = u32::try_from(start).map_err(memory_error)?;
    loaded.header.ramdisk_size = short_length;
    Ok(())
}

fn low_ram_end(mem: &GuestMem) -> u64 {
    mem.iter().map(|region| region.start_addr().0 + region.len()).filter(|end| *end <= HOLE).max().unwrap_or(0)
}

fn write_zero_page(mem: &GuestMem, mut header: setup_header) -> Result<(), KernelError> {
    header.type_of_loader = LOADER_UNDEFINED;
    header.cmd_line_ptr = u32::try_from(CMDLINE).map_err(memory_error)?;
    header.cmdline_size = u32::try_from(CMDLINE_MAX).map_err(memory_error)?;
    let mut params = boot_params { hdr: header, acpi_rsdp_addr: ACPI_TABLES, ..boot_params::default() };
    let map = memory_map(mem);
    for (slot, (addr, size, kind)) in params.e820_table.iter_mut().zip(&map) {
        *slot = boot_e820_entry { addr: *addr, size: *size, r#type: *kind };
    }
    params.e820_entries = u8::try_from(map.len()).map_err(memory_error)?;
    LinuxBootConfigurator::write_bootparams(&BootParams::new(&params, GuestAddress(ZERO_PAGE)), mem)
        .map_err(memory_error)
}

/// The memory map the kernel is told: conventional memory, the reserved stretch up to 1 MiB, then each RAM region.
fn memory_map(mem: &GuestMem) -> Vec<(u64, u64, u32)> {
    let mut map = vec![(0, LOW_RAM_END, E820_RAM), (LOW_RAM_END, HIGH_RAM - LOW_RAM_END, E820_RESERVED)];
    for region in mem.iter() {
        let (start, end) = (region.start_addr().0.max(HIGH_RAM), region.start_addr().0 + region.len());
        map.push((start, end - start, E820_RAM));
    }
    map
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn load(mem: &GuestMem, kernel: &Path, initramfs: Option<&Path>, cmdline: &str) -> Result<u64, KernelError> {
        super::load(mem, BootFiles::open(kernel, initramfs)?, cmdline)
    }

    fn memory() -> GuestMem {
        crate::memory::map("128M".parse().unwrap()).unwrap().mem
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// A bzImage as far as a loader looks: header, set-up sectors, a payload.
    fn bzimage(init_size: u32) -> Vec<u8> {
        let mut image = vec![0; 0x4000];
        image[0x1f1] = 4;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x020f_u16.to_le_bytes());
        image[0x211] = 1;
        image[0x214..0x218].copy_from_slice(&0x10_0000_u32.to_le_bytes());
        image[0x22c..0x230].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
        image[0x236] = 1;
        image[0x258..0x260].copy_from_slice(&0x100_0000_u64.to_le_bytes());
        image[0x260..0x264].copy_from_slice(&init_size.to_le_bytes());
        image
    }

    #[test]
    fn a_bzimage_is_entered_at_its_64_bit_entry_with_the_initramfs_at_the_top() {
        let mem = memory();
        let (kernel, initramfs) = (file(&bzimage(0x200_0000)), file(&[7; 5000]));
        let entry = load(&mem, kernel.path(), Some(initramfs.path()), "console=ttyS0").unwrap();
        assert_eq!(entry, 0x10_0200);
        let params: boot_params = mem.read_obj(GuestAddress(ZERO_PAGE)).unwrap();
        let start = params.hdr.ramdisk_image;
        assert_eq!(u64::from(start), ((128 << 20) - 5000) & !0xfff);
        assert_eq!(mem.read_obj::<u8>(GuestAddress(u64::from(start) + 4999)).unwrap(), 7);
        let mut cmdline = [0; 14];
        mem.read_slice(&mut cmdline, GuestAddress(CMDLINE)).unwrap();
        assert_eq!(&cmdline, b"console=ttyS0\0");
    }

    /// An ELF vmlinux as far as a loader looks: one segment, at 16 MiB.
    fn vmlinux() -> Vec<u8> {
        let mut image = vec![0; 0x1000];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let words: [(usize, &[u8]); 12] = [
            (16, &[2, 0, 62, 0, 1]),
            (24, &0x100_0000_u64.to_le_bytes()),
            (32, &64_u64.to_le_bytes()),
            (52, &[64, 0, 56, 0, 1]),
            (64, &[1]),
            (68, &[5]),
            (72, &0x800_u64.to_le_bytes()),
            (80, &0x100_0000_u64.to_le_bytes()),
            (88, &0x100_0000_u64.to_le_bytes()),
            (96, &0x800_u64.to_le_bytes()),
            (104, &0x800_u64.to_le_bytes()),
            (0x800, b"code"),
        ];
        for (offset, bytes) in words {
            image[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        image
    }

    #[test]
    fn a_vmlinux_is_entered_where_it_says() {
        let (mem, kernel) = (memory(), file(&vmlinux()));
        assert_eq!(load(&mem, kernel.path(), None, "").unwrap(), 0x100_0000);
        let mut code = [0; 4];
        mem.read_slice(&mut code, GuestAddress(0x100_0000)).unwrap();
        assert_eq!(&code, b"code");
    }

    #[test]
    fn what_is_no_kernel_is_refused_with_its_name() {
        for bytes in [&b""[..], b"MZ", &[0; 4096], b"\x7fELF but no more", &bzimage(1)[..0x210]] {
            let kernel = file(bytes);
            let error = load(&memory(), kernel.path(), None, "").unwrap_err();
            assert!(error.to_string().contains(kernel.path().to_str().unwrap()), "{error}");
        }
        let error = load(&memory(), Path::new("/no/such/kernel"), None, "").unwrap_err();
        assert!(matches!(error, KernelError::Read { .. }), "{error}");
    }

    #[test]
    fn a_kernel_or_initramfs_that_does_not_fit_is_refused() {
        let big = file(&bzimage(0x1000_0000));
        assert!(matches!(load(&memory(), big.path(), None, ""), Err(KernelError::NoRoom { .. })));
        let (kernel, initramfs) = (file(&bzimage(0x100_0000)), file(b""));
        initramfs.as_file().set_len(120 << 20).unwrap();
        let error = load(&memory(), kernel.path(), Some(initramfs.path()), "").unwrap_err();
        assert!(matches!(error, KernelError::NoRoom { .. }), "{error}");
    }

    #[test]
    fn the_command_line_is_bounded() {
        let kernel = file(&bzimage(0x100_0000));
        let error = load(&memory(), kernel.path(), None, &"x".repeat(CMDLINE_MAX)).unwrap_err();
        assert!(matches!(error, KernelError::Cmdline { len: CMDLINE_MAX }));
    }
}
