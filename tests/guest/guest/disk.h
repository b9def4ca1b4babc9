/* The first disk (virtio 1.2, 5.2), a block at a time. Whoever asks waits for it. */
#ifndef DISK_H
#define DISK_H

#include "machine.h"

#define BLOCK 512

enum direction { DISK_READ, DISK_WRITE };

void disk_start(void);
/* False when the disk could not. */
bool disk_transfer(enum direction direction, uint64_t number, uint8_t block[BLOCK]);

#endif
