#include "machine.h"

#define IOAPIC 0xfec00000u
#define CODE_SEGMENT 0x10
#define INTERRUPT_GATE 0x8e
#define PORT_PANIC 0x505
#define PORT_SLEEP 0x600
#define PORT_RESET 0x602

/* Registers of the local APIC. Its timer counts nanoseconds, as KVM has it. */
enum {
    END_OF_INTERRUPT = 0xb0,
    SPURIOUS = 0xf0,
    TIMER = 0x320,
    PIN_0 = 0x350,
    TIMER_FROM = 0x380,
    TIMER_AT = 0x390,
    TIMER_DIVIDE = 0x3e0,
};
#define APIC_ON 0x1ff
#define DIVIDE_BY_ONE 0xb
#define MASKED 0x10000

struct gate {
    uint16_t low, segment;
    uint8_t stack, type;
    uint16_t middle;
    uint32_t high, reserved;
};

static struct gate gates[VECTOR_WAKE + 1];
static bool timer_is_set;

/* entry.S and cpus.S: where an interrupt goes on. */
void awake(void);
void cpu_awake(void);

static void ioapic(uint32_t index, uint32_t value)
{
    *(volatile uint32_t *)(uintptr_t)IOAPIC = index;
    *(volatile uint32_t *)(uintptr_t)(IOAPIC + 0x10) = value;
}

static void out(uint16_t port, uint8_t value)
{
    __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port));
}

static void lead_to(unsigned vector, void entry(void))
{
    uintptr_t at = (uintptr_t)entry;
    gates[vector] = (struct gate){(uint16_t)at, CODE_SEGMENT, 0, INTERRUPT_GATE, (uint16_t)(at >> 16), 0, 0};
}

void machine_start_cpu(void)
{
    struct __attribute__((packed)) {
        uint16_t limit;
        uint64_t base;
    } table = {sizeof gates - 1, (uintptr_t)gates};
    __asm__ volatile("lidt %0" ::"m"(table) : "memory");
    *apic(SPURIOUS) = APIC_ON;
    *apic(PIN_0) = MASKED; /* there is an old interrupt controller that nobody has set up */
}

void machine_start(void)
{
    lead_to(VECTOR, awake);
    lead_to(VECTOR_WAKE, cpu_awake);
    machine_start_cpu();
    *apic(TIMER) = VECTOR;
    *apic(TIMER_DIVIDE) = DIVIDE_BY_ONE;
}

void machine_listen(unsigned line)
{
    ioapic(0x11 + 2 * line, 0); /* to the first CPU */
    ioapic(0x10 + 2 * line, VECTOR);
}

void machine_awake(void)
{
    *apic(END_OF_INTERRUPT) = 0;
}

void timer_set(uint32_t ns)
{
    timer_is_set = true;
    *apic(TIMER_FROM) = ns;
}

bool timer_over(void)
{
    if (!timer_is_set || *apic(TIMER_AT) != 0)
        return false;
    timer_is_set = false;
    return true;
}

uint64_t ticks(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

void machine_end(enum ending ending)
{
    switch (ending) {
    case POWER_OFF:
        out(PORT_SLEEP, 5 << 2 | 1 << 5);
        break;
    case RESTART:
        out(PORT_RESET, 1);
        break;
    case PANIC:
        out(PORT_PANIC, 1);
        break;
    }
}

/* By string instructions: where a KVM emulates guests, each instruction counts. */
void *memcpy(void *to, const void *from, size_t count)
{
    void *at = to;
    size_t words = count / 8, bytes = count % 8;
    __asm__ volatile("rep movsq" : "+D"(at), "+S"(from), "+c"(words)::"memory");
    __asm__ volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(bytes)::"memory");
    return to;
}

void *memset(void *at, int byte, size_t count)
{
    void *to = at;
    size_t words = count / 8, bytes = count % 8;
    uint64_t word = (uint8_t)byte * 0x0101010101010101u;
    __asm__ volatile("rep stosq" : "+D"(to), "+c"(words) : "a"(word) : "memory");
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(word) : "memory");
    return at;
}

int memcmp(const void *left, const void *right, size_t count)
{
    const uint8_t *one = left, *other = right;
    for (; count > 0; count--, one++, other++)
        if (*one != *other)
            return *one - *other;
    return 0;
}
