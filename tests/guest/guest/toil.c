#include "toil.h"
#include "disk.h"

#define PAGE 4096
/* Behind the guest itself. */
#define FIRST_PAGE 0x800000
#define PAGES 64
/* Far from where words are written. */
#define FIRST_BLOCK 8000
#define BLOCKS 8

static bool toils, torn;
static volatile uint64_t begun, done;
static union {
    uint64_t round;
    uint8_t bytes[BLOCK];
} block;

static volatile uint64_t *page(unsigned number)
{
    return (volatile uint64_t *)(uintptr_t)(FIRST_PAGE + number * PAGE);
}

void toil_begin(void)
{
    toils = true;
}

void toil_end(void)
{
    toils = false;
}

bool toil_round(void)
{
    if (!toils)
        return false;
    begun++;
    for (unsigned number = 0; number < PAGES; number++) {
        torn |= *page(number) != begun - 1;
        *page(number) = begun;
    }
    block.round = begun;
    torn |= !disk_transfer(DISK_WRITE, FIRST_BLOCK + begun % BLOCKS, block.bytes);
    done = begun;
    return true;
}

bool toil_is_whole(void)
{
    if (torn || done != begun)
        return false;
    for (unsigned number = 0; number < PAGES; number++)
        if (*page(number) != done)
            return false;
    for (uint64_t round = done; round > 0 && round + BLOCKS > done; round--)
        if (!disk_transfer(DISK_READ, FIRST_BLOCK + round % BLOCKS, block.bytes) || block.round != round)
            return false;
    return true;
}
