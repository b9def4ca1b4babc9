//! The guest: says that it runs, waits until it has become another VM, says so, and sleeps for ever.

use std::path::Path;
use std::{fs, io};

/// What it says when it has booted.
pub(super) const BOOTED: u8 = b'b';
/// What it says when it finds itself restored.
pub(super) const RESTORED: u8 = b'r';

/// Where it is loaded.
const ADDRESS: u64 = 0x100_0000;
/// Where the file has it: a page boundary, as the address is.
const OFFSET: usize = 0x1000;

/// 64-bit code. The VM generation id lies at 0xdf000 (see `layout.rs` of the VMM); it is read before the guest says that
/// it has booted, so from then on it can be frozen at any instruction.
const CODE: &[u8] = &[
    0xbe, 0x00, 0xf0, 0x0d, 0x00, //       mov  esi, 0xdf000
    0x48, 0x8b, 0x1e, //                   mov  rbx, [rsi]
    0x66, 0xba, 0xf8, 0x03, //             mov  dx, 0x3f8
    0xb0, BOOTED, //                       mov  al, 'b'
    0xee,   //                               out  dx, al
    0xf3, 0x90, //                   wait: pause
    0x48, 0x3b, 0x1e, //                   cmp  rbx, [rsi]
    0x74, 0xf9, //                         je   wait
    0xb0, RESTORED, //                     mov  al, 'r'
    0xee,     //                               out  dx, al
    0xf4,     //                        sleep: hlt
    0xeb, 0xfd, //                         jmp  sleep
];

/// Writes it as the ELF file a kernel is.
pub(super) fn write_elf(path: &Path) -> io::Result<()> {
    const HEADER: usize = 64;
    const SEGMENT: u16 = 56;
    let len = CODE.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let header: [&[u8]; 13] = [
        &2_u16.to_le_bytes(),  // an executable
        &62_u16.to_le_bytes(), // for x86-64
        &1_u32.to_le_bytes(),
        &ADDRESS.to_le_bytes(),
        &(HEADER as u64).to_le_bytes(), // where the segments are listed
        &0_u64.to_le_bytes(),
        &0_u32.to_le_bytes(),
        &64_u16.to_le_bytes(),
        &SEGMENT.to_le_bytes(),
        &1_u16.to_le_bytes(), // how many segments
        &0_u16.to_le_bytes(),
        &0_u16.to_le_bytes(),
        &0_u16.to_le_bytes(),
    ];
    let readable_and_executable = 5_u32;
    let segment: [&[u8]; 8] = [
        &1_u32.to_le_bytes(), // to be loaded
        &readable_and_executable.to_le_bytes(),
        &(OFFSET as u64).to_le_bytes(),
        &ADDRESS.to_le_bytes(),
        &ADDRESS.to_le_bytes(),
        &len.to_le_bytes(),
        &len.to_le_bytes(),
        &(OFFSET as u64).to_le_bytes(),
    ];
    header.iter().chain(&segment).for_each(|field| elf.extend_from_slice(field));
    elf.resize(OFFSET, 0);
    elf.extend_from_slice(CODE);
    fs::write(path, elf)
}
