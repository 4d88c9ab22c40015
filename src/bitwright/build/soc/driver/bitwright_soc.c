/* SPDX-License-Identifier: Apache-2.0 */
#include "bitwright_soc.h"

#include <string.h>

#define MAGIC UINT32_C(0x31535742)
#define ALIGNMENT 128u /* of every region: no burst crosses 4 KiB */

/* Registers, as numbers of 32-bit words; see soc_control.sv. */
enum { REG_FRAMES = 3, REG_CYCLES = 4, REG_OUTPUTS = 5, REG_IN = 6, REG_OUT = 8 };

int bw_open(struct bw_device *device, uint64_t control, const char *buffer, uint32_t digest,
            uint32_t outputs)
{
    int status = bw_device_open(device, control, buffer, MAGIC, digest);

    if (status == BW_OK && device->registers[REG_OUTPUTS] != outputs) {
        bw_close(device);
        status = BW_OTHER_DESIGN;
    }
    return status;
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
        bw_set_address(device, REG_IN, 0);
        for (k = 0; k < outputs; k++) {
            bw_set_address(device, REG_OUT + 2 * k, offset);
            offset += region(&streams[k + 1], count);
        }
        device->registers[REG_FRAMES] = count;
        status = bw_start(device, limit_ms);
        if (status != BW_OK)
            return status;
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
