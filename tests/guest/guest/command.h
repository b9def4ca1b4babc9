/*
 * What goes on on behalf of connections. There are no processes: a program has ended when it was started, or is a state of
 * its connection.
 */
#ifndef COMMAND_H
#define COMMAND_H

#include "text.h"

enum doing { NOTHING, HEARING, SLEEPING, SAYING, TOILING };

/* A request to execute something. */
struct call {
    unsigned connection;
    /* Its words, the program's name first. */
    const struct text *words;
    unsigned count;
    /* The first word behind the name, or nothing. */
    struct text argument;
    /* What else it says. */
    struct text rest;
};

/* Once, before anything. */
void command_prepare(void);
/* Whoever it was for has left. */
void command_forget(unsigned connection);
/* Starts what a request, from behind its own name, asks for. */
void command_start(unsigned connection, struct text request);
void command_signal(unsigned connection, struct text request);
void command_input(unsigned connection, struct text input);
void command_input_end(unsigned connection);
/* Does what can be done without anybody's help; false when that is nothing. */
bool command_continue(unsigned connection);
bool command_runs(unsigned connection);
/* Looks at the time. */
void command_time(void);

/* For programs: it is over; it goes on, and ends by itself after so long if that is not 0; it has so much to say. */
void exited(const struct call *call, uint64_t code);
void go_on(const struct call *call, enum doing doing, uint64_t ms);
void go_on_saying(const struct call *call, uint64_t count);

#endif
