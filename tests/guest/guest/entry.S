/*
 * Where the guest begins, and where it sleeps. It has one stack, and nothing on it when it sleeps; interrupts are let in
 * there only. So whoever wakes it need not return to anything, and no register is worth keeping.
 */
        .text
        .globl  _start, awake
_start: mov     $stack_end, %esp
        call    start
awake:  mov     $stack_end, %esp
        call    attend
        sti
        hlt
        jmp     awake

        .bss
        .balign 16
        .skip   8192
stack_end:
        .section .note.GNU-stack, "", @progbits
