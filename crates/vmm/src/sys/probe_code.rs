//! The probe's guest: a handful of instructions every stock kernel needs, in a loop, then an `out`.
//!
//! In: rdi = rounds, rsi = 64-byte aligned area of at least 4 KiB. Out: port 0x99 when all rounds were right, 0x9e when
//! an instruction computed something else than a CPU would. The vector registers go through memory and back by the
//! instructions a kernel would choose: XSAVE where the CPU says it has it, else FXSAVE. Some emulated hosts lose what a
//! guest writes to XCR0, and with it every guest's vector registers at its first task switch; this sees it.

use std::slice;

core::arch::global_asm!(
    ".pushsection .rodata.forkd_probe, \"a\"",
    ".globl forkd_probe_start",
    ".globl forkd_probe_end",
    "forkd_probe_start:",
    // Switch on SSE as a kernel does: CR0.MP, not EM; CR4.OSFXSR|OSXMMEXCPT.
    "mov rax, cr0",
    "and eax, 0xfffffffb",
    "or eax, 2",
    "mov cr0, rax",
    "mov rax, cr4",
    "or eax, 0x600",
    "mov cr4, rax",
    // Leaf 1, ECX bit 26: XSAVE. Then CR4.OSXSAVE, and XCR0 = x87|SSE.
    "mov eax, 1",
    "cpuid",
    "mov r9d, ecx",
    "bt r9d, 26",
    "jnc 2f",
    "mov rax, cr4",
    "or eax, 0x40000",
    "mov cr4, rax",
    "xor ecx, ecx",
    "xor edx, edx",
    "mov eax, 3",
    "xsetbv",
    "2:",
    // A 128-bit division: (1 << 64) / 3.
    "mov edx, 1",
    "xor eax, eax",
    "mov ecx, 3",
    "div rcx",
    "mov rcx, 0x5555555555555555",
    "cmp rax, rcx",
    "jne 9f",
    // cmpxchg16b against what is there must succeed.
    "mov qword ptr [rsi], 7",
    "mov qword ptr [rsi + 8], 9",
    "mov eax, 7",
    "mov edx, 9",
    "mov ebx, 11",
    "mov ecx, 13",
    "lock cmpxchg16b xmmword ptr [rsi]",
    "jnz 9f",
    "cmp qword ptr [rsi + 8], 13",
    "jne 9f",
    // A vector register to memory, wiped, and back.
    "mov eax, 0x1234",
    "movd xmm0, eax",
    "mov eax, 3",
    "xor edx, edx",
    "bt r9d, 26",
    "jc 3f",
    "fxsave [rsi + 64]",
    "pxor xmm0, xmm0",
    "fxrstor [rsi + 64]",
    "jmp 4f",
    "3:",
    "xsave [rsi + 64]",
    "pxor xmm0, xmm0",
    "xrstor [rsi + 64]",
    "4:",
    "movd eax, xmm0",
    "cmp eax, 0x1234",
    "jne 9f",
    "dec rdi",
    "jnz 2b",
    "mov al, 1",
    "out 0x99, al",
    "hlt",
    "9:",
    "mov al, 1",
    "out 0x9e, al",
    "hlt",
    "forkd_probe_end:",
    ".popsection",
);

unsafe extern "C" {
    static forkd_probe_start: u8;
    static forkd_probe_end: u8;
}

/// The guest's code, position-independent.
pub(crate) fn code() -> &'static [u8] {
    let (start, end) = (&raw const forkd_probe_start, &raw const forkd_probe_end);
    // SAFETY: both symbols delimit the read-only bytes assembled above, which live as long as the program.
    unsafe { slice::from_raw_parts(start, end.addr() - start.addr()) }
}
