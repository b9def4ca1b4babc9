/*
 * Work that never rests and that a torn instant would spoil. Each round writes its number to every one of some pages, which
 * must all have the number before it, then to a block of the disk, and then down that it has done so.
 */
#ifndef TOIL_H
#define TOIL_H

#include "machine.h"

void toil_begin(void);
void toil_end(void);
/* A round; false when there is nothing to do. */
bool toil_round(void);
/* Whether memory and disk have, between two rounds, what those before left in them. */
bool toil_is_whole(void);

#endif
