/* SPDX-License-Identifier: Apache-2.0 */
/* Driver of Bitwright's programmed engine beside a processor under Linux. C99 and POSIX, nothing
   else. Not run on a board: its circuit is simulated, the driver run with files for its devices.

   The buffer is the engine's memory: program and constants from its beginning on, then the
   network's values. */
#ifndef BITWRIGHT_SOC_ENGINE_H
#define BITWRIGHT_SOC_ENGINE_H

#include "bitwright_device.h"
#include "bitwright_image.h"

/* How a run ended. */
struct bw_engine_end {
    uint32_t code;   /* what the program's HALT says */
    uint32_t error;  /* bit 0 no opcode, 1 a read that the memory refused, 2 a write */
    uint64_t cycles; /* of the engine's clock */
};

/* Open the engine, as bw_device_open; a program that a former driver left at work has limit_ms to
   end. digest: of the driver's design.h. */
int bw_engine_open(struct bw_device *device, uint64_t control, const char *buffer, uint32_t digest,
                   uint32_t limit_ms);

/* Write program and constants of an image file. words: of memory that its run needs, word_bytes: of
   one in the network's bitwright_network.h; design_word_bytes: of the engine's, in design.h. */
int bw_engine_load(struct bw_device *device, const char *path, uint64_t words, uint32_t word_bytes,
                   uint32_t design_word_bytes);

/* Levels (pixels, channels) of an input into the buffer, of an output out of it. */
void bw_engine_put(struct bw_device *device, const bitwright_region *region, const int32_t *levels);
void bw_engine_get(struct bw_device *device, const bitwright_region *region, int32_t *levels);

/* Run what is loaded. end: how it ended, where it did; may be NULL. */
int bw_engine_run(struct bw_device *device, uint32_t limit_ms, struct bw_engine_end *end);

#endif
