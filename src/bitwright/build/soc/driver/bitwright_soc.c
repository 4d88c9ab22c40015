/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "bitwright_soc.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAGIC UINT32_C(0x31535742)
#define PAGE 4096u
#define ALIGNMENT 128u /* of every region: no burst crosses 4 KiB */

/* Registers, as numbers of 32-bit words; see soc_control.sv. */
enum { REG_MAGIC = 0, REG_DIGEST = 1, REG_CONTROL = 2, REG_FRAMES = 3, REG_CYCLES = 4,
       REG_OUTPUTS = 5, REG_IN = 6, REG_OUT = 8 };
enum { BUSY = 1, DONE = 2, FAILED = 4 };

static int read_number(const char *buffer, const char *what, uint64_t *value)
{
    char path[128], text[64];
    char *end;
    FILE *file;
    size_t length;
    int written = snprintf(path, sizeof path, "/sys/class/u-dma-buf/%s/%s", buffer, what);

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

int bw_open(struct bw_device *device, uint64_t control, const char *buffer, uint32_t digest,
            uint32_t outputs)
{
    char path[128];
    uint64_t size = 0;
    int written, status;

    memset(device, 0, sizeof *device);
    device->registers = map_file("/dev/mem", PAGE, control);
    if (device->registers == NULL)
        return BW_NO_MEMORY_DEVICE;
    status = read_number(buffer, "phys_addr", &device->buffer_physical);
    if (status == BW_OK)
        status = read_number(buffer, "size", &size);
    written = snprintf(path, sizeof path, "/dev/%s", buffer);
    if (status == BW_OK && (written < 0 || (size_t)written >= sizeof path))
        status = BW_NO_BUFFER;
    if (status == BW_OK) {
        device->buffer_bytes = (size_t)size;
        device->buffer = map_file(path, device->buffer_bytes, 0);
        if (device->buffer == NULL || device->buffer_physical % ALIGNMENT != 0)
            status = BW_NO_BUFFER;
    }
    if (status == BW_OK && device->registers[REG_MAGIC] != MAGIC)
        status = BW_NO_DESIGN;
    if (status == BW_OK && (device->registers[REG_DIGEST] != digest
                            || device->registers[REG_OUTPUTS] != outputs))
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

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t region(const struct bw_stream *stream, uint32_t frames)
{
    return aligned((uint64_t)stream->frame_bytes * frames);
}

/* Most frames whose streams fit into the buffer together. */
static uint32_t fitting(const struct bw_device *device, const struct bw_stream *streams,
                        uint32_t outputs, uint32_t wanted)
{
    uint64_t one = 0, spare = (uint64_t)ALIGNMENT * (outputs + 1), most;
    uint32_t k;

    for (k = 0; k <= outputs; k++)
        one += streams[k].frame_bytes;
    if (device->buffer_bytes < spare + one)
        return 0;
    most = (device->buffer_bytes - spare) / one;
    return most < wanted ? (uint32_t)most : wanted;
}

static int wait_for(struct bw_device *device, uint32_t limit_ms)
{
    struct timespec begin, now;
    uint32_t state;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        int64_t passed;

        state = device->registers[REG_CONTROL];
        if (!(state & BUSY) && (state & DONE))
            return (state & FAILED) ? BW_BUS_ERROR : BW_OK;
        clock_gettime(CLOCK_MONOTONIC, &now);
        passed = (int64_t)(now.tv_sec - begin.tv_sec) * 1000
                 + (now.tv_nsec - begin.tv_nsec) / 1000000;
        if (passed > (int64_t)limit_ms)
            return BW_TIMEOUT;
    }
}

static void set_address(struct bw_device *device, uint32_t word, uint64_t offset)
{
    uint64_t address = device->buffer_physical + offset;

    device->registers[word] = (uint32_t)address;
    device->registers[word + 1] = (uint32_t)(address >> 32);
}

int bw_run(struct bw_device *device, const struct bw_stream *streams, uint32_t outputs,
           uint32_t frames, const int64_t *levels, int64_t *const results[], uint32_t limit_ms)
{
    uint32_t first = 0;

    device->cycles = 0;
    while (first < frames) {
        uint32_t count = fitting(device, streams, outputs, frames - first), frame, k;
        size_t elements = (size_t)streams[0].beats * streams[0].lanes;
        uint64_t offset = region(&streams[0], count);
        int status;

        if (count == 0)
            return BW_BUFFER_TOO_SMALL;
        for (frame = 0; frame < count; frame++)
            bw_pack_frame(&streams[0], levels + elements * (first + frame),
                          device->buffer + (size_t)streams[0].frame_bytes * frame);
        set_address(device, REG_IN, 0);
        for (k = 0; k < outputs; k++) {
            set_address(device, REG_OUT + 2 * k, offset);
            offset += region(&streams[k + 1], count);
        }
        device->registers[REG_FRAMES] = count;
        __sync_synchronize();
        device->registers[REG_CONTROL] = 1;
        status = wait_for(device, limit_ms);
        if (status != BW_OK)
            return status;
        __sync_synchronize();
        device->cycles += device->registers[REG_CYCLES];
        offset = region(&streams[0], count);
        for (k = 0; k < outputs; k++) {
            const struct bw_stream *stream = &streams[k + 1];

            elements = (size_t)stream->beats * stream->lanes;
            for (frame = 0; frame < count; frame++)
                bw_unpack_frame(stream,
                                device->buffer + offset + (size_t)stream->frame_bytes * frame,
                                results[k] + elements * (first + frame));
            offset += region(stream, count);
        }
        first += count;
    }
    return BW_OK;
}

static void put_bits(uint8_t *bytes, size_t position, uint32_t bits, uint64_t value)
{
    uint32_t k;

    for (k = 0; k < bits; k++, position++)
        if (value >> k & 1)
            bytes[position / 8] |= (uint8_t)(1u << position % 8);
}

static uint64_t get_bits(const uint8_t *bytes, size_t position, uint32_t bits)
{
    uint64_t value = 0;
    uint32_t k;

    for (k = 0; k < bits; k++, position++)
        value |= (uint64_t)(bytes[position / 8] >> position % 8 & 1) << k;
    return value;
}

void bw_pack_frame(const struct bw_stream *stream, const int64_t *levels, uint8_t *bytes)
{
    size_t beat, lane;

    memset(bytes, 0, stream->frame_bytes);
    for (beat = 0; beat < stream->beats; beat++)
        for (lane = 0; lane < stream->lanes; lane++, levels++)
            put_bits(bytes + beat * stream->slot, lane * stream->lane_bits, stream->lane_bits,
                     stream->bipolar ? (uint64_t)(*levels > 0) : (uint64_t)*levels);
}

void bw_unpack_frame(const struct bw_stream *stream, const uint8_t *bytes, int64_t *levels)
{
    size_t beat, lane;

    for (beat = 0; beat < stream->beats; beat++)
        for (lane = 0; lane < stream->lanes; lane++, levels++) {
            uint64_t value = get_bits(bytes + beat * stream->slot, lane * stream->lane_bits,
                                      stream->lane_bits);
            uint64_t sign = UINT64_C(1) << (stream->lane_bits - 1);

            if (stream->bipolar)
                *levels = value ? 1 : -1;
            else if (stream->is_signed && (value & sign))
                *levels = -(int64_t)((sign << 1) - value);
            else
                *levels = (int64_t)value;
        }
}

const char *bw_text(int status)
{
    switch (status) {
    case BW_OK: return "all right";
    case BW_NO_MEMORY_DEVICE: return "/dev/mem cannot be opened or mapped (are you root?)";
    case BW_NO_BUFFER: return "the u-dma-buf is not there or cannot be mapped";
    case BW_NO_DESIGN: return "no Bitwright design answers at this address (bitstream loaded?)";
    case BW_OTHER_DESIGN: return "the bitstream holds another design than this driver is for";
    case BW_BUFFER_TOO_SMALL: return "the buffer does not hold one frame of each stream";
    case BW_BUS_ERROR: return "memory refused an access";
    case BW_TIMEOUT: return "the design did not finish in time";
    case BW_SHORT_FRAME: return "the input ends within a frame";
    default: return "unknown status";
    }
}
