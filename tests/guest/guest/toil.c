#include "toil.h"
#include "cpus.h"
#include "disk.h"

#define PAGE 4096
/* Behind the guest itself; so many for each CPU. */
#define FIRST_PAGE 0x800000
#define PAGES 64
/* Far from where words are written. */
#define FIRST_BLOCK 8000
#define BLOCKS 8
/* How many rounds the first CPU may be ahead of the last: then none of them has to wait for all others. */
#define AHEAD 4
/* In ticks, some seconds: others may use the same processors. */
#define PATIENCE (1ull << 35)

union block {
    uint64_t round;
    uint8_t bytes[BLOCK];
};

static bool toils;
static volatile bool torn;
static struct {
    volatile uint64_t begun, done;
} workers[MOST_CPUS];
/* The rounds of all CPUs. */
static volatile uint64_t rounds;
/* What goes to the disk, and what comes back: only the device writes there. */
static union block sent;
static volatile union {
    union block block;
    uint8_t page[PAGE];
} landing __attribute__((aligned(PAGE)));
static uint64_t last_ticks, longest_gap;

static volatile uint64_t *page(unsigned cpu, unsigned number)
{
    return (volatile uint64_t *)(uintptr_t)(FIRST_PAGE + (cpu * PAGES + number) * PAGE);
}

void toil_begin(void)
{
    toils = true;
    last_ticks = ticks();
}

void toil_end(void)
{
    toils = false;
}

uint64_t toil_rounds(void)
{
    return workers[0].done;
}

uint64_t toil_gap(void)
{
    uint64_t longest = longest_gap;
    longest_gap = 0;
    return longest;
}

static bool transfer(enum direction direction, uint64_t round, volatile union block *block)
{
    return disk_transfer(direction, FIRST_BLOCK + round % BLOCKS, (uint8_t *)block->bytes);
}

/* The part of a round that every CPU has. */
static uint64_t write_pages(unsigned cpu)
{
    uint64_t round = ++workers[cpu].begun;
    for (unsigned number = 0; number < PAGES; number++) {
        if (*page(cpu, number) != round - 1 || (cpu > 0 && *page(cpu - 1, number) < round))
            torn = true;
        *page(cpu, number) = round;
    }
    return round;
}

static void finish(unsigned cpu, uint64_t round)
{
    __atomic_fetch_add(&rounds, 1, __ATOMIC_SEQ_CST);
    workers[cpu].done = round;
    if (cpu + 1 < cpus_count())
        cpu_wake(cpu + 1);
}

bool toil_round(void)
{
    if (!toils)
        return false;
    uint64_t now = ticks();
    if (now - last_ticks > longest_gap)
        longest_gap = now - last_ticks;
    last_ticks = now;
    if (workers[0].done >= workers[cpus_count() - 1].done + AHEAD)
        return true;
    uint64_t round = write_pages(0);
    sent.round = round;
    bool moved = landing.block.round == round - 1 && transfer(DISK_WRITE, round, &sent);
    moved = moved && landing.block.round == round - 1 && transfer(DISK_READ, round, &landing.block);
    if (!moved || landing.block.round != round)
        torn = true;
    finish(0, round);
    return true;
}

void toil_follow(unsigned cpu)
{
    while (workers[cpu].done < workers[cpu - 1].done)
        finish(cpu, write_pages(cpu));
}

/* Waits until all CPUs have done what the first has. */
static bool become_level(void)
{
    uint64_t begun = ticks();
    for (unsigned cpu = 1; cpu < cpus_count(); cpu++)
        while (workers[cpu].done != workers[0].done)
            if (ticks() - begun > PATIENCE)
                return false;
    return true;
}

enum toil toil_look(void)
{
    static union block found;
    uint64_t done = workers[0].done;
    if (!become_level())
        return STUCK;
    if (torn || landing.block.round != done || rounds != done * cpus_count())
        return TORN;
    for (unsigned cpu = 0; cpu < cpus_count(); cpu++)
        for (unsigned number = 0; number < PAGES; number++)
            if (workers[cpu].begun != done || *page(cpu, number) != done)
                return TORN;
    for (uint64_t round = done; round > 0 && round + BLOCKS > done; round--)
        if (!transfer(DISK_READ, round, &found) || found.round != round)
            return TORN;
    return WHOLE;
}
