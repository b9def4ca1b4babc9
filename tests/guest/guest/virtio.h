/* The driver's side of virtio-mmio, version 2, with split queues (virtio 1.2, 4.2 and 2.7). */
#ifndef VIRTIO_H
#define VIRTIO_H

#include "machine.h"

#define MOST_DESCRIPTORS 64

enum { DESCRIPTOR_NEXT = 1, DESCRIPTOR_WRITE = 2 };

struct queue {
    struct {
        uint64_t address;
        uint32_t length;
        uint16_t flags, next;
    } descriptors[MOST_DESCRIPTORS] __attribute__((aligned(16)));
    struct {
        volatile uint16_t flags, index;
        uint16_t ring[MOST_DESCRIPTORS];
    } available;
    struct {
        volatile uint16_t flags, index;
        struct {
            uint32_t head, length;
        } ring[MOST_DESCRIPTORS];
    } used __attribute__((aligned(4)));
    /* Which one it is of its device's, and how many descriptors it has. */
    uint16_t number, size;
    /* How many chains the device was told of, and how many of those that came back were looked at. */
    uint16_t told, seen;
};

struct device {
    volatile uint32_t *registers;
    unsigned line;
};

/* Finds the first device of this kind, resets it and agrees on its features: none but those of version 1. */
bool device_find(struct device *device, uint32_t kind);
void device_add_queue(struct device *device, struct queue *queue, uint16_t number, uint16_t size);
void device_run(struct device *device);
/* The device may interrupt again. */
void device_acknowledge(struct device *device);
uint64_t device_config(struct device *device);

void queue_describe(struct queue *queue, uint16_t at, const volatile void *address, uint32_t length, uint16_t flags);
void queue_offer(struct queue *queue, uint16_t head);
/* Room for the device to write to. */
void queue_offer_buffer(struct queue *queue, uint16_t at, void *address, uint32_t length);
/* The next chain that came back; false when there is none. */
bool queue_take(struct queue *queue, uint16_t *head, uint32_t *length);
/* How many chains the device has. */
uint16_t queue_under_way(const struct queue *queue);
/* Whether the device shall interrupt when a chain comes back. */
void queue_interrupt(struct queue *queue, bool wanted);
/* Tells the device of new chains, if there are any and it does not look by itself. */
void queue_notify(struct device *device, struct queue *queue);

#endif
