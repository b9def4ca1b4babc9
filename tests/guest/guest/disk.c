#include "disk.h"
#include "virtio.h"

#define KIND 2
/* A power of two, and no less than the pieces of a request. */
#define DESCRIPTORS 4

static struct device device;
static struct queue requests;

static struct {
    uint32_t direction, reserved;
    uint64_t sector;
} header;
static volatile uint8_t status;

void disk_start(void)
{
    if (!device_find(&device, KIND))
        return;
    device_add_queue(&device, &requests, 0, DESCRIPTORS);
    queue_interrupt(&requests, false);
    device_run(&device);
}

bool disk_transfer(enum direction direction, uint64_t number, uint8_t block[BLOCK])
{
    if (device.registers == NULL)
        return false;
    header.direction = direction;
    header.sector = number;
    status = 0xff;
    queue_describe(&requests, 0, &header, sizeof header, DESCRIPTOR_NEXT);
    queue_describe(&requests, 1, block, BLOCK, DESCRIPTOR_NEXT | (direction == DISK_READ ? DESCRIPTOR_WRITE : 0));
    queue_describe(&requests, 2, &status, sizeof status, DESCRIPTOR_WRITE);
    queue_offer(&requests, 0);
    queue_notify(&device, &requests);
    while (queue_under_way(&requests) > 0)
        fence();
    return status == 0;
}
