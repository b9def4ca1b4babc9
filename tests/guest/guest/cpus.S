/*
 * Where all CPUs but the first begin: in real mode, on the page that their start-up interrupt names, to which this is copied.
 * They go on with the first one's tables (layout.rs of the VMM) and sleep as it does (entry.S), each on a stack of its own.
 */
#include "cpus.h"

#define GDT             0x500
#define PAGE_TABLES     0x9000
#define CODE_SEGMENT    0x10
#define DATA_SEGMENT    0x18
#define PHYSICAL_ADDRESS_EXTENSION 0x20
#define EFER            0xc0000080
#define LONG_MODE       0x100
#define PAGED_AND_PROTECTED 0x80000011
#define LOCAL_APIC_ID   0xfee00020
#define STACK_SHIFT     12

        .text
        .globl  trampoline, trampoline_end, cpu_awake
        .code16
trampoline:
        lgdtl   TRAMPOLINE + gdt_pointer - trampoline
        mov     $PHYSICAL_ADDRESS_EXTENSION, %eax
        mov     %eax, %cr4
        mov     $PAGE_TABLES, %eax
        mov     %eax, %cr3
        mov     $EFER, %ecx
        rdmsr
        or      $LONG_MODE, %eax
        wrmsr
        mov     $PAGED_AND_PROTECTED, %eax
        mov     %eax, %cr0
        ljmpl   $CODE_SEGMENT, $cpu_start
        .balign 8
gdt_pointer:
        .word   5 * 8 - 1
        .long   GDT
trampoline_end:

        /* edi becomes this CPU's number, and its stack its own and empty. */
        .macro  begin_anew
        mov     $LOCAL_APIC_ID, %eax
        mov     (%rax), %edi
        shr     $24, %edi
        mov     %edi, %esp
        shl     $STACK_SHIFT, %esp
        add     $stacks, %esp
        .endm

        .code64
cpu_start:
        mov     $DATA_SEGMENT, %eax
        mov     %eax, %ds
        mov     %eax, %es
        mov     %eax, %ss
        begin_anew
        call    cpu_begin
cpu_awake:
        begin_anew
        call    cpu_attend
        sti
        hlt
        jmp     cpu_awake

        .bss
        .balign 16
stacks: .skip   (MOST_CPUS - 1) << STACK_SHIFT
        .section .note.GNU-stack, "", @progbits
