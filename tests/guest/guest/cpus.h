/* The CPUs beside the first, which alone has to do with devices: they sleep until another one wakes them. */
#ifndef CPUS_H
#define CPUS_H

#define MOST_CPUS 32
/* A page in low memory that nothing else uses. */
#define TRAMPOLINE 0x8000

#ifndef __ASSEMBLER__
#include "machine.h"

/* Starts all there are. */
void cpus_start(void);
unsigned cpus_count(void);
void cpu_wake(unsigned number);
#endif

#endif
