/*
 * The agent's side of the guest protocol, generation 1 (crates/proto): frames of a length, a channel and bytes, of which
 * those of channel 0 are messages.
 */
#ifndef AGENT_H
#define AGENT_H

#include "text.h"

#define MESSAGE_MOST 512

enum channel { MESSAGES, STDIN, STDOUT, STDERR };

/* A message that is being written. */
struct message {
    uint32_t length;
    uint8_t bytes[MESSAGE_MOST];
};

void add(struct message *message, struct text text);
void add_number(struct message *message, uint64_t number);
void reply(unsigned connection, const struct message *message);
/* A message without variables. */
void reply_text(unsigned connection, struct text text);
/* Some output of a command. */
void write_out(unsigned connection, enum channel channel, struct text text);
/* The same of bytes that never change. */
void write_static(unsigned connection, enum channel channel, struct text text);

#endif
