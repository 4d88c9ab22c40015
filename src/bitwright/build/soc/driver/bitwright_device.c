/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "bitwright_device.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef BW_MEMORY_DEVICE /* tests have files of their own */
#define BW_MEMORY_DEVICE "/dev/mem"
#define BW_BUFFER_DEVICE "/dev/%s"
#define BW_BUFFER_NUMBERS "/sys/class/u-dma-buf/%s/%s"
#endif
#define PAGE 4096u
#define ALIGNMENT 128u /* no burst crosses 4 KiB */

static int read_number(const char *buffer, const char *what, uint64_t *value)
{
    char path[128], text[64];
    char *end;
    FILE *file;
    size_t length;
    int written = snprintf(path, sizeof path, BW_BUFFER_NUMBERS, buffer, what);

    if (written < 0 || (size_t)written >= sizeof path)
        return BW_NO_BUFFER;
    file = fopen(path, "r");
    if (file == NULL)
        return BW_NO_BUFFER;
    length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    *value = strtoull(text, &end, 0);
    return end == text ? BW_NO_BUFFER : BW_OK;
}

static void *map_file(const char *path, size_t bytes, uint64_t offset)
{
    int file = open(path, O_RDWR | O_SYNC); /* O_SYNC: not cached */
    void *mapped;

    if (file < 0)
        return NULL;
    mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)offset);
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

int bw_device_open(struct bw_device *device, uint64_t control, const char *buffer, uint32_t magic,
                   uint32_t digest)
{
    char path[128];
    uint64_t size = 0;
    int written, status;

    memset(device, 0, sizeof *device);
    device->registers = map_file(BW_MEMORY_DEVICE, PAGE, control);
    if (device->registers == NULL)
        return BW_NO_MEMORY_DEVICE;
    status = read_number(buffer, "phys_addr", &device->buffer_physical);
    if (status == BW_OK)
        status = read_number(buffer, "size", &size);
    written = snprintf(path, sizeof path, BW_BUFFER_DEVICE, buffer);
    if (status == BW_OK && (written < 0 || (size_t)written >= sizeof path))
        status = BW_NO_BUFFER;
    if (status == BW_OK) {
        device->buffer_bytes = (size_t)size;
        device->buffer = map_file(path, device->buffer_bytes, 0);
        if (device->buffer == NULL || device->buffer_physical % ALIGNMENT != 0)
            status = BW_NO_BUFFER;
    }
    if (status == BW_OK && device->registers[BW_REG_MAGIC] != magic)
        status = BW_NO_DESIGN;
    if (status == BW_OK && device->registers[BW_REG_DIGEST] != digest)
        status = BW_OTHER_DESIGN;
    if (status != BW_OK)
        bw_close(device);
    return status;
}

void bw_close(struct bw_device *device)
{
    if (device->registers != NULL)
        munmap((void *)device->registers, PAGE);
    if (device->buffer != NULL)
        munmap(device->buffer, device->buffer_bytes);
    memset(device, 0, sizeof *device);
}

void bw_set_address(struct bw_device *device, uint32_t word, uint64_t offset)
{
    uint64_t address = device->buffer_physical + offset;

    device->registers[word] = (uint32_t)address;
    device->registers[word + 1] = (uint32_t)(address >> 32);
}

/* Until the bits `mask` of the state are `wanted`. */
static int wait_until(struct bw_device *device, uint32_t mask, uint32_t wanted, uint32_t limit_ms)
{
    struct timespec begin, now;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    while ((device->registers[BW_REG_CONTROL] & mask) != wanted) {
        int64_t passed;

        clock_gettime(CLOCK_MONOTONIC, &now);
        passed = (int64_t)(now.tv_sec - begin.tv_sec) * 1000
                 + (now.tv_nsec - begin.tv_nsec) / 1000000;
        if (passed > (int64_t)limit_ms)
            return BW_TIMEOUT;
    }
    return BW_OK;
}

int bw_wait(struct bw_device *device, uint32_t limit_ms)
{
    return wait_until(device, BW_STATE_RUNS, 0, limit_ms);
}

int bw_start(struct bw_device *device, uint32_t limit_ms)
{
    int status;

    __sync_synchronize();
    device->registers[BW_REG_CONTROL] = 1;
    status = wait_until(device, BW_STATE_RUNS | BW_STATE_DONE, BW_STATE_DONE, limit_ms);
    __sync_synchronize();
    if (status == BW_OK && (device->registers[BW_REG_CONTROL] & BW_STATE_ERROR))
        status = BW_BUS_ERROR;
    return status;
}

const char *bw_text(int status)
{
    switch (status) {
    case BW_OK: return "all right";
    case BW_NO_MEMORY_DEVICE: return "/dev/mem cannot be opened or mapped (are you root?)";
    case BW_NO_BUFFER: return "the u-dma-buf is not there, cannot be mapped, or lies badly";
    case BW_NO_DESIGN: return "no Bitwright design answers at this address (bitstream loaded?)";
    case BW_OTHER_DESIGN: return "the bitstream holds another design than this driver is for";
    case BW_BUFFER_TOO_SMALL: return "the buffer does not hold what a run needs";
    case BW_BUS_ERROR: return "memory refused an access";
    case BW_TIMEOUT: return "the design did not finish in time";
    case BW_SHORT_FRAME: return "the input ends within a frame";
    case BW_NO_PROGRAM: return "the file is no program for this engine, or cannot be read";
    case BW_BAD_PROGRAM: return "the program in the buffer is none: load it again";
    case BW_BUSY: return "a program of before runs and does not end: load the bitstream again";
    default: return "unknown status";
    }
}
