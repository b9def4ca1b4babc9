#include "vsock.h"
#include "virtio.h"

#define KIND 19
#define HOST 2
#define AGENT_PORT 1717
#define STREAM 1
#define BUFFERS 32
#define EVENTS 4
#define PACKET 2048
/* Packets kept for answers that the service has no part in, and how many there must be for it to say something. */
#define RESERVE 8
#define ENOUGH (RESERVE + MOST_SAID / (PACKET - sizeof(struct header)) + 2)

enum operation { REQUEST = 1, RESPONSE, RESET, SHUTDOWN, DATA, CREDIT_UPDATE, CREDIT_REQUEST };
enum { SHUTDOWN_SEND = 2, SHUTDOWN_BOTH = 3 };

struct header {
    uint64_t from_cid, to_cid;
    uint32_t from_port, to_port, length;
    uint16_t type, operation;
    uint32_t flags, room, taken;
} __attribute__((packed));

struct packet {
    struct header header;
    uint8_t data[PACKET - sizeof(struct header)];
};

static struct device device;
static struct queue incoming, outgoing, events;
static struct packet came[BUFFERS] __attribute__((aligned(PACKET))), said[BUFFERS] __attribute__((aligned(PACKET)));
static uint32_t event[EVENTS];
static uint64_t cid;
/* The host's port of each connection, 0 for none; where something happened; and how many are worth looking at. */
static uint32_t ports[MOST_CONNECTIONS];
static bool happened[MOST_CONNECTIONS];
static unsigned known;
struct connection connections[MOST_CONNECTIONS];
/* How much is in the packet that is being collected. */
static uint32_t collected;
/* Somebody has to wait until packets come back. */
static bool short_of_packets;

void vsock_start(void)
{
    if (!device_find(&device, KIND))
        machine_end(PANIC);
    device_add_queue(&device, &incoming, 0, BUFFERS);
    device_add_queue(&device, &outgoing, 1, 2 * BUFFERS);
    device_add_queue(&device, &events, 2, EVENTS);
    for (uint16_t at = 0; at < BUFFERS; at++)
        queue_offer_buffer(&incoming, at, &came[at], sizeof came[at]);
    for (uint16_t at = 0; at < EVENTS; at++)
        queue_offer_buffer(&events, at, &event[at], sizeof event[at]);
    device_run(&device);
    cid = device_config(&device);
    queue_notify(&device, &incoming);
    queue_notify(&device, &events);
}

/* Packets come back in the order in which they went, so those that are free follow those that are not. */
static uint16_t free_packets(void)
{
    return BUFFERS - queue_under_way(&outgoing);
}

static void send(struct header header, const void *more, uint32_t count)
{
    uint16_t at = outgoing.available.index % BUFFERS, head = 2 * at;
    uint32_t own = header.length;
    header.from_cid = cid;
    header.to_cid = HOST;
    header.from_port = AGENT_PORT;
    header.type = STREAM;
    header.length += count;
    said[at].header = header;
    queue_describe(&outgoing, head, &said[at], sizeof header + own, count > 0 ? DESCRIPTOR_NEXT : 0);
    queue_describe(&outgoing, head + 1, more, count, 0);
    queue_offer(&outgoing, head);
}

static void answer(unsigned number, enum operation operation, uint32_t length, const void *more, uint32_t count)
{
    struct connection *connection = &connections[number];
    connection->told = connection->taken;
    connection->sent += length + count;
    struct header header = {.to_port = ports[number], .operation = operation, .length = length};
    header.room = ROOM;
    header.taken = connection->taken;
    send(header, more, count);
}

static void refuse(uint32_t port)
{
    send((struct header){.to_port = port, .operation = RESET}, NULL, 0);
}

static void forget(unsigned number)
{
    ports[number] = 0;
    agent_forget(number);
    while (known > 0 && ports[known - 1] == 0)
        known--;
}

void hang_up(unsigned number)
{
    if (ports[number] == 0)
        return;
    collected = 0;
    connections[number].waiting = 0;
    refuse(ports[number]);
    forget(number);
}

unsigned vsock_connections(void)
{
    return known;
}

void vsock_wake(unsigned number)
{
    happened[number] = ports[number] != 0;
}

static unsigned find(uint32_t port)
{
    unsigned number = 0;
    while (number < known && ports[number] != port)
        number++;
    return number;
}

static void connect(const struct header *header)
{
    unsigned number = find(0);
    if (header->to_port != AGENT_PORT || number == MOST_CONNECTIONS)
        return refuse(header->from_port);
    if (number == known)
        known++;
    ports[number] = header->from_port;
    struct connection *connection = &connections[number];
    connection->sent = connection->told = connection->taken = connection->waiting = 0;
    connection->ended = false;
    connection->host_room = header->room;
    connection->host_taken = header->taken;
    answer(number, RESPONSE, 0, NULL, 0);
}

static void hear(const struct packet *packet, uint32_t length)
{
    const struct header *header = &packet->header;
    unsigned number = find(header->from_port);
    if (header->operation == REQUEST && number == known)
        return connect(header);
    if (number == known) {
        if (header->operation != RESET && header->operation != SHUTDOWN)
            refuse(header->from_port);
        return;
    }
    struct connection *connection = &connections[number];
    happened[number] = true;
    connection->host_room = header->room;
    connection->host_taken = header->taken;
    switch (header->operation) {
    case DATA:
        if (length < sizeof *header + header->length || header->length > ROOM - connection->waiting)
            return hang_up(number);
        memcpy(connection->came + connection->waiting, packet->data, header->length);
        connection->waiting += header->length;
        return;
    case SHUTDOWN:
        connection->ended |= header->flags & SHUTDOWN_SEND;
        if ((header->flags & SHUTDOWN_BOTH) == SHUTDOWN_BOTH)
            forget(number);
        return;
    case CREDIT_REQUEST:
        return answer(number, CREDIT_UPDATE, 0, NULL, 0);
    case CREDIT_UPDATE:
        return;
    default:
        forget(number);
    }
}

/* The only event there is: this is another VM, and nobody is connected to it. */
static void hear_events(void)
{
    uint16_t head;
    uint32_t length;
    while (queue_take(&events, &head, &length)) {
        cid = device_config(&device);
        while (known > 0)
            forget(known - 1);
        queue_offer(&events, head);
    }
    queue_notify(&device, &events);
}

static bool hear_packets(void)
{
    uint16_t head;
    uint32_t length;
    bool heard = false;
    while (free_packets() > RESERVE / 2 && queue_take(&incoming, &head, &length)) {
        hear(&came[head], length);
        queue_offer(&incoming, head);
        heard = true;
    }
    short_of_packets |= free_packets() <= RESERVE / 2;
    queue_notify(&device, &incoming);
    return heard;
}

bool may_say(unsigned number)
{
    struct connection *connection = &connections[number];
    if (free_packets() < ENOUGH) {
        short_of_packets = true;
        return false;
    }
    return connection->sent - connection->host_taken + collected + MOST_SAID <= connection->host_room;
}

static void send_collected(unsigned number, const void *more, uint32_t count)
{
    uint32_t length = collected;
    collected = 0;
    if (length + count > 0)
        answer(number, DATA, length, more, count);
}

void say(unsigned number, const void *bytes, uint32_t count)
{
    while (count > 0) {
        struct packet *packet = &said[outgoing.available.index % BUFFERS];
        uint32_t part = sizeof packet->data - collected;
        if (part > count)
            part = count;
        memcpy(packet->data + collected, bytes, part);
        collected += part;
        bytes = (const uint8_t *)bytes + part;
        count -= part;
        if (collected == sizeof packet->data)
            send_collected(number, NULL, 0);
    }
}

void say_static(unsigned number, const void *bytes, uint32_t count)
{
    send_collected(number, bytes, count);
}

void take(unsigned number, uint32_t count)
{
    struct connection *connection = &connections[number];
    connection->taken += count;
    connection->waiting -= count;
    /* Downwards, so it may overlap. */
    memcpy(connection->came, connection->came + count, connection->waiting);
}

static void serve(void)
{
    for (unsigned number = 0; number < known; number++) {
        if (!happened[number])
            continue;
        happened[number] = false;
        if (ports[number] == 0)
            continue;
        bool more = agent_serve(number);
        if (ports[number] == 0)
            continue;
        happened[number] = more;
        send_collected(number, NULL, 0);
        if (connections[number].taken - connections[number].told > ROOM / 2)
            answer(number, CREDIT_UPDATE, 0, NULL, 0);
    }
    queue_notify(&device, &outgoing);
}

void vsock_attend(void)
{
    device_acknowledge(&device);
    queue_interrupt(&outgoing, false);
    for (;;) {
        short_of_packets = false;
        hear_events();
        bool heard = hear_packets();
        serve();
        if (heard)
            continue;
        if (!short_of_packets)
            return;
        /* From now on those that come back interrupt; what came back before is seen here. */
        queue_interrupt(&outgoing, true);
        if (free_packets() < ENOUGH)
            return;
    }
}

void vsock_drain(void)
{
    queue_notify(&device, &outgoing);
    while (queue_under_way(&outgoing) > 0)
        fence();
}
