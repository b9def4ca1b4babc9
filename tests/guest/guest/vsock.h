/*
 * Streams between host and guest (virtio 1.2, 5.10), for one service on one port.
 *
 * What comes is kept in its connection until the service takes it, and no more is let in than there is room for. What the
 * service says is collected to packets, and it speaks only when there is room for all it can say at once.
 */
#ifndef VSOCK_H
#define VSOCK_H

#include "machine.h"

#define MOST_CONNECTIONS 256
/* Room for what came and was not taken: a message is no longer than this. */
#define ROOM 16384
/* The most that is said at once. */
#define MOST_SAID (ROOM + 2048)

struct connection {
    uint32_t sent, told, taken;
    uint32_t host_room, host_taken;
    uint32_t waiting;
    /* The host will say nothing more. */
    bool ended;
    uint8_t came[ROOM];
};

void vsock_start(void);
/* Hears all that came, and has the service look at each connection where something happened. */
void vsock_attend(void);
/* Connections have numbers below this. */
unsigned vsock_connections(void);
/* Has the service look at a connection, if it is one. */
void vsock_wake(unsigned number);
/* Waits until the host has all that was said. */
void vsock_drain(void);

/* Whether the host takes as much as can be said at once. */
bool may_say(unsigned number);
void say(unsigned number, const void *bytes, uint32_t count);
/* The same of bytes that never change, which are not copied. */
void say_static(unsigned number, const void *bytes, uint32_t count);
/* The first `count` bytes that came are done with. */
void take(unsigned number, uint32_t count);
void hang_up(unsigned number);

extern struct connection connections[MOST_CONNECTIONS];

/* The service, agent.c: somebody left. */
void agent_forget(unsigned number);
/* Something happened; true when there is more to do and it may not say anything. */
bool agent_serve(unsigned number);

#endif
