#include "cpus.h"
#include "toil.h"

/* What one CPU sends another. */
enum { SENT_IS = 0x300, SENT_TO = 0x310 };
#define INITIALISE 0x4500
#define START_UP 0x4600
#define INTERRUPT 0x4000

/* cpus.S: what is copied to low memory. */
extern const uint8_t trampoline[], trampoline_end[];

static unsigned count = 1;
static volatile bool started[MOST_CPUS];

static void send(unsigned number, uint32_t what)
{
    *apic(SENT_TO) = number << 24;
    *apic(SENT_IS) = what;
}

void cpus_start(void)
{
    uint32_t leaf = 1, said, ignored;
    __asm__ volatile("cpuid" : "+a"(leaf), "=b"(said), "=c"(ignored), "=d"(ignored));
    count = said >> 16 & 0xff;
    memcpy((void *)TRAMPOLINE, trampoline, trampoline_end - trampoline);
    for (unsigned number = 1; number < count; number++) {
        send(number, INITIALISE);
        send(number, START_UP | TRAMPOLINE >> 12);
        while (!started[number])
            fence();
    }
}

unsigned cpus_count(void)
{
    return count;
}

void cpu_wake(unsigned number)
{
    fence();
    send(number, INTERRUPT | VECTOR_WAKE);
}

/* From cpus.S: once, and whenever it was woken. */
void cpu_begin(unsigned number)
{
    machine_start_cpu();
    started[number] = true;
}

void cpu_attend(unsigned number)
{
    machine_awake();
    toil_follow(number);
}
