/*
 * What can be executed. In memory and on the disk there are numbered places for words; the first of each says `parent` when
 * the guest has booted.
 *
 *     echo WORD...          says the words
 *     true, sync            do nothing
 *     exit N                ends with this code
 *     cat                   says what it hears, to its end
 *     yes N                 says `y` N times
 *     sleep [MS [WORD]]     says the word, and waits for so long; without a time, until a signal
 *     remember PLACE WORD   keeps a word in memory; `recall PLACE` says it
 *     write BLOCK WORD      keeps a word on the disk; `read BLOCK` says it
 *     fill MIB              writes to each page of so much memory
 *     toil                  works in memory and on the disk until a signal; `check` says how many rounds
 *                           that was, and fails if it was ever torn
 *     gap                   says the time, and for how long nothing was toiled at most since somebody asked, in ticks
 *     nproc                 says how many CPUs there are
 *     hostname              says who the VM is
 *     printenv NAME         says a variable that came with the renewal
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "command.h"

typedef void run_t(const struct call *call);

/* NULL when there is none of that name. */
run_t *program_find(struct text name);
/* Once, when there is a disk. */
void program_prepare(void);
/* Keeps what this VM is told to be. */
void program_renew(struct text request);

#endif
