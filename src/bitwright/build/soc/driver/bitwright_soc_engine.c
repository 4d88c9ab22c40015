/* SPDX-License-Identifier: Apache-2.0 */
#include "bitwright_soc_engine.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC UINT32_C(0x31455742)
#define PAGE 4096u /* at whose multiples programs begin */

/* Registers, as numbers of 32-bit words; see soc_engine.sv. */
enum { REG_END = 3, REG_CYCLES = 4, REG_BASE = 6 };
enum { NO_OPCODE = 1 };

int bw_engine_open(struct bw_device *device, uint64_t control, const char *buffer, uint32_t digest,
                   uint32_t limit_ms)
{
    int status = bw_device_open(device, control, buffer, MAGIC, digest);

    if (status != BW_OK)
        return status;
    /* The engine counts with the lower 32 bits of addresses. */
    if (device->buffer_physical % PAGE != 0
        || (device->buffer_physical & UINT32_MAX) + device->buffer_bytes > UINT64_C(1) << 32)
        status = BW_NO_BUFFER;
    else if (bw_wait(device, limit_ms) != BW_OK)
        status = BW_BUSY;
    if (status == BW_OK)
        bw_set_address(device, REG_BASE, 0);
    else
        bw_close(device);
    return status;
}

int bw_engine_load(struct bw_device *device, const char *path, uint64_t words, uint32_t word_bytes,
                   uint32_t design_word_bytes)
{
    const char *why;
    size_t bytes;
    uint8_t *data;

    if (word_bytes != design_word_bytes)
        return BW_NO_PROGRAM;
    if (words > device->buffer_bytes / word_bytes)
        return BW_BUFFER_TOO_SMALL;
    data = bitwright_image_read(path, word_bytes, words, &bytes, &why);
    if (data == NULL)
        return BW_NO_PROGRAM;
    memcpy(device->buffer, data, bytes);
    free(data);
    return BW_OK;
}

void bw_engine_put(struct bw_device *device, const bitwright_region *region, const int32_t *levels)
{
    bitwright_region_put(region, levels,
                         device->buffer + (size_t)region->word * region->word_bytes);
}

void bw_engine_get(struct bw_device *device, const bitwright_region *region, int32_t *levels)
{
    bitwright_region_get(region, device->buffer + (size_t)region->word * region->word_bytes,
                         levels);
}

int bw_engine_run(struct bw_device *device, uint32_t limit_ms, struct bw_engine_end *end)
{
    int status = bw_start(device, limit_ms);
    uint32_t word;

    if (status == BW_TIMEOUT)
        return status;
    word = device->registers[REG_END];
    device->cycles = device->registers[REG_CYCLES]
                     | (uint64_t)device->registers[REG_CYCLES + 1] << 32;
    if (end != NULL) {
        end->code = word & 255u;
        end->error = word >> 8 & 15u;
        end->cycles = device->cycles;
    }
    return (word >> 8 & NO_OPCODE) ? BW_BAD_PROGRAM : status;
}
