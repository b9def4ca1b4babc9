#include "virtio.h"

#define MAGIC 0x74726976u
#define VERSION_1 1u /* in the upper half of the features */
#define NO_NOTIFICATION 1
#define NO_INTERRUPT 1

enum status { ACKNOWLEDGE = 1, DRIVER = 2, DRIVER_OK = 4, FEATURES_OK = 8 };

/* Registers, as indexes of words. */
enum {
    MAGIC_VALUE = 0x000 / 4,
    DEVICE_ID = 0x008 / 4,
    DRIVER_FEATURES = 0x020 / 4,
    DRIVER_FEATURES_SELECT = 0x024 / 4,
    QUEUE_SELECT = 0x030 / 4,
    QUEUE_SIZE = 0x038 / 4,
    QUEUE_READY = 0x044 / 4,
    QUEUE_NOTIFY = 0x050 / 4,
    INTERRUPT_ACKNOWLEDGE = 0x064 / 4,
    STATUS = 0x070 / 4,
    QUEUE_DESCRIPTORS = 0x080 / 4,
    QUEUE_AVAILABLE = 0x090 / 4,
    QUEUE_USED = 0x0a0 / 4,
    CONFIG = 0x100 / 4,
};

bool device_find(struct device *device, uint32_t kind)
{
    for (unsigned number = 0; number < VIRTIO_DEVICES; number++) {
        volatile uint32_t *registers = (volatile uint32_t *)(uintptr_t)(VIRTIO_MMIO + number * 0x1000);
        if (registers[MAGIC_VALUE] != MAGIC || registers[DEVICE_ID] != kind)
            continue;
        *device = (struct device){registers, IRQ_VIRTIO + number};
        registers[STATUS] = 0;
        registers[STATUS] = ACKNOWLEDGE;
        registers[STATUS] = ACKNOWLEDGE | DRIVER;
        registers[DRIVER_FEATURES_SELECT] = 1;
        registers[DRIVER_FEATURES] = VERSION_1;
        registers[STATUS] = ACKNOWLEDGE | DRIVER | FEATURES_OK;
        return true;
    }
    return false;
}

static void set_address(struct device *device, unsigned at, const volatile void *address)
{
    device->registers[at] = (uint32_t)(uintptr_t)address;
    device->registers[at + 1] = (uint32_t)((uintptr_t)address >> 32);
}

void device_add_queue(struct device *device, struct queue *queue, uint16_t number, uint16_t size)
{
    queue->number = number;
    queue->size = size;
    device->registers[QUEUE_SELECT] = number;
    device->registers[QUEUE_SIZE] = size;
    set_address(device, QUEUE_DESCRIPTORS, queue->descriptors);
    set_address(device, QUEUE_AVAILABLE, &queue->available);
    set_address(device, QUEUE_USED, &queue->used);
    device->registers[QUEUE_READY] = 1;
}

void device_run(struct device *device)
{
    device->registers[STATUS] = ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK;
    machine_listen(device->line);
}

void device_acknowledge(struct device *device)
{
    device->registers[INTERRUPT_ACKNOWLEDGE] = 3;
}

uint64_t device_config(struct device *device)
{
    return (uint64_t)device->registers[CONFIG + 1] << 32 | device->registers[CONFIG];
}

void queue_describe(struct queue *queue, uint16_t at, const volatile void *address, uint32_t length, uint16_t flags)
{
    queue->descriptors[at].address = (uintptr_t)address;
    queue->descriptors[at].length = length;
    queue->descriptors[at].flags = flags;
    queue->descriptors[at].next = at + 1;
}

void queue_offer(struct queue *queue, uint16_t head)
{
    uint16_t index = queue->available.index;
    queue->available.ring[index % queue->size] = head;
    __asm__ volatile("" ::: "memory");
    queue->available.index = index + 1;
}

void queue_offer_buffer(struct queue *queue, uint16_t at, void *address, uint32_t length)
{
    queue_describe(queue, at, address, length, DESCRIPTOR_WRITE);
    queue_offer(queue, at);
}

bool queue_take(struct queue *queue, uint16_t *head, uint32_t *length)
{
    if (queue->used.index == queue->seen)
        return false;
    __asm__ volatile("" ::: "memory");
    unsigned at = queue->seen++ % queue->size;
    *head = (uint16_t)queue->used.ring[at].head;
    *length = queue->used.ring[at].length;
    return true;
}

uint16_t queue_under_way(const struct queue *queue)
{
    return queue->available.index - queue->used.index;
}

void queue_interrupt(struct queue *queue, bool wanted)
{
    queue->available.flags = wanted ? 0 : NO_INTERRUPT;
    fence();
}

void queue_notify(struct device *device, struct queue *queue)
{
    if (queue->told == queue->available.index)
        return;
    queue->told = queue->available.index;
    fence();
    if (!(queue->used.flags & NO_NOTIFICATION))
        device->registers[QUEUE_NOTIFY] = queue->number;
}
