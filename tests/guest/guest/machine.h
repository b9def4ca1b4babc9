/* The machine: addresses as layout.rs of the VMM has them, ports, interrupts, and what C leaves to a library. */
#ifndef MACHINE_H
#define MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VIRTIO_MMIO 0xd0000000u
#define VIRTIO_DEVICES 11
#define IRQ_VIRTIO 5
#define LOCAL_APIC 0xfee00000u
/* Interrupts of devices and the timer, which are the first CPU's, and those by which CPUs wake each other. */
#define VECTOR 0x20
#define VECTOR_WAKE 0x21

/* A kernel's way to end. */
enum ending { POWER_OFF, RESTART, PANIC };

/* Interrupts on a line, and the timer's, wake the guest; nothing else does. */
void machine_start(void);
/* Another CPU can be woken, too. */
void machine_start_cpu(void);
void machine_listen(unsigned line);
/* What woke the guest may do so again. */
void machine_awake(void);
/* Wakes the guest in so long a time. */
void timer_set(uint32_t ns);
/* Whether the time it was set to has passed. */
bool timer_over(void);
uint64_t ticks(void);
void machine_end(enum ending ending);

void *memcpy(void *to, const void *from, size_t count);
void *memset(void *at, int byte, size_t count);
int memcmp(const void *left, const void *right, size_t count);

static inline volatile uint32_t *apic(unsigned offset)
{
    return (volatile uint32_t *)(uintptr_t)(LOCAL_APIC + offset);
}

/* What the device must see first is written before this, what it wrote first is read after it. */
static inline void fence(void)
{
    __asm__ volatile("lock orl $0, (%%rsp)" ::: "memory", "cc");
}

#endif
