/*
 * A guest that writes its memory all the time and says when it could not.
 *
 *     cc -nostdlib -static -no-pie -Wl,-Ttext=0x1000000 -DPAGES=<n> -o writer.elf writer.S
 *
 * It says 'b' when it has booted and 'r' when it finds itself another VM: the VM generation id, at 0xdf000 (see layout.rs
 * of the VMM), is then another. It sleeps until the power button is pressed, and then writes a word to each of PAGES
 * pages, over and over. Between two writes it looks at the time stamp counter. A gap that is long, and once in a while
 * any gap, it tells in three times nine bytes, of seven bits each with the eighth set, low ones first: the counter, the
 * gap, and how often it has begun to write all pages. Forked meanwhile, it says 'r', after no more than one byte of what
 * it was telling, sleeps and can be woken again.
 */
#define GENERATION    0xdf000
#define FIRST_PAGE    0x2000000
#define PAGE          4096
#define SERIAL        0x3f8
#define LOCAL_APIC    0xfee00000
#define IOAPIC        0xfec00000
#define BUTTON_LINE   16
#define BUTTON_VECTOR 0x20
#define LONG_GAP      0x40000   /* ticks: a tenth of a millisecond, about */
#define BEAT          0x4000000 /* ticks: some 25 milliseconds */

/*
 * rbx the generation id   rsi where it is     rdi the page        ecx pages left
 * r8  the counter         r9  the gap         r11 last told       r12 what is written   r13 passes begun
 */
        .text
        .globl  _start
_start: mov     $stack_end, %esp
        lidt    idt_pointer
        mov     $LOCAL_APIC, %eax
        movl    $0x1ff, 0xf0(%rax)              /* switched on */
        mov     $IOAPIC, %eax
        movl    $0x11 + 2 * BUTTON_LINE, (%rax)
        movl    $0, 0x10(%rax)                  /* to the first CPU */
        movl    $0x10 + 2 * BUTTON_LINE, (%rax)
        movl    $BUTTON_VECTOR, 0x10(%rax)      /* by this interrupt */
        xor     %r12d, %r12d
        mov     $GENERATION, %esi
        mov     (%rsi), %rbx
        mov     $'b', %al
        call    say
1:      pause
        cmp     (%rsi), %rbx
        je      1b

renewed:
        mov     $stack_end, %esp
        mov     (%rsi), %rbx
        mov     $'r', %al
        call    say
        sti
1:      hlt
        jmp     1b

        /* Interrupts are off from here on, and nothing is returned to. */
work:   mov     $stack_end, %esp
        mov     $LOCAL_APIC, %eax
        movl    $0, 0xb0(%rax)                  /* the next one may come */
        xor     %r13d, %r13d
        xor     %r11d, %r11d
        call    now
pass:   inc     %r12
        inc     %r13
        mov     $FIRST_PAGE, %edi
        mov     $PAGES, %ecx
page:   cmp     (%rsi), %rbx
        jne     renewed
        mov     %r12, (%rdi)
        add     $PAGE, %rdi
        mov     %r8, %r9
        call    now
        neg     %r9
        add     %r8, %r9
        cmp     $LONG_GAP, %r9
        ja      1f
        mov     %r8, %rax
        sub     %r11, %rax
        cmp     $BEAT, %rax
        jbe     2f
1:      call    tell
2:      dec     %ecx
        jnz     page
        jmp     pass

        /* r8 becomes the counter. */
now:    rdtsc
        shl     $32, %rdx
        lea     (%rax, %rdx), %r8
        ret

        /* The time it takes is no gap. */
tell:   mov     %r8, %r11
        mov     %r8, %rbp
        call    word
        mov     %r9, %rbp
        call    word
        mov     %r13, %rbp
        call    word
        jmp     now

word:   mov     $9, %r14d
1:      cmp     (%rsi), %rbx
        jne     renewed
        mov     %ebp, %eax
        or      $0x80, %al
        call    say
        shr     $7, %rbp
        dec     %r14d
        jnz     1b
        ret

say:    mov     $SERIAL, %edx
        out     %al, %dx
        ret

        .balign 16
idt:    .skip   16 * BUTTON_VECTOR
        .word   (work - _start) & 0xffff, 0x10, 0x8e00, 0x100
        .quad   0
idt_pointer:
        .word   . - idt - 1
        .quad   idt
        .balign 16
        .skip   256
stack_end:
        .section .note.GNU-stack, "", @progbits
