/*
 * Work that never rests and that a torn instant would spoil.
 *
 * Each round of the first CPU writes its number to every one of some pages, which must all have the number before it, then to
 * a block of the disk, and has the disk write that block to a page that nobody else writes. Every other CPU follows the one
 * before it with a round of its own over its own pages, and sleeps when they are level; all of them count their rounds in
 * one place. So there are always pages, requests and interrupts under way.
 */
#ifndef TOIL_H
#define TOIL_H

#include "machine.h"

/* What one sees between two rounds: all that those before have left, something else, or a CPU that does not go on. */
enum toil { WHOLE, TORN, STUCK };

void toil_begin(void);
void toil_end(void);
/* A round of the first CPU; false when there is nothing to do. */
bool toil_round(void);
/* The rounds that another CPU is behind. */
void toil_follow(unsigned cpu);
enum toil toil_look(void);
/* How many the first CPU has done. */
uint64_t toil_rounds(void);
/* The longest time between two rounds since the last call. */
uint64_t toil_gap(void);

#endif
