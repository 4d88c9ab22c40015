/* SPDX-License-Identifier: Apache-2.0 */
/* Driver of a Bitwright design beside a processor under Linux. C99 and POSIX, nothing else.
   Not run on a board: compiled and linted, its packing compared with Bitwright's own. */
#ifndef BITWRIGHT_SOC_H
#define BITWRIGHT_SOC_H

#include "bitwright_device.h"

/* A stream of the design and where its frames lie in memory. */
struct bw_stream {
    const char *name;
    uint32_t slot;        /* bytes of a beat: 1, 2, 4 or a multiple of 8 */
    uint32_t frame_bytes; /* a multiple of 8 */
    uint32_t beats;       /* of a frame */
    uint32_t lanes;       /* elements of a beat, the first in the lowest bits */
    uint32_t lane_bits;   /* 1 to 63 */
    uint32_t is_signed;   /* elements are two's complement */
    uint32_t bipolar;     /* elements are -1 and +1 on one bit */
};

/* Open a design. control: its physical address. buffer: name of a u-dma-buf ("udmabuf0").
   digest, outputs: of the driver's design.h; the hardware must have the same. */
int bw_open(struct bw_device *device, uint64_t control, const char *buffer, uint32_t digest,
            uint32_t outputs);

/* Run frames. streams: the input, then the outputs. levels: frames * beats * lanes elements of the
   input; results[k]: as many of output k. limit_ms: longest time of one chunk. */
int bw_run(struct bw_device *device, const struct bw_stream *streams, uint32_t outputs,
           uint32_t frames, const int64_t *levels, int64_t *const results[], uint32_t limit_ms);

/* One frame between elements (beats * lanes) and its bytes in memory (frame_bytes). Elements lie
   within what their bits hold. */
void bw_pack_frame(const struct bw_stream *stream, const int64_t *levels, uint8_t *bytes);
void bw_unpack_frame(const struct bw_stream *stream, const uint8_t *bytes, int64_t *levels);

#endif
