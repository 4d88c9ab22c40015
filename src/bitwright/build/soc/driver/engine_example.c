/* SPDX-License-Identifier: Apache-2.0 */
/* Runs frames through a network on the engine: a file of integers (text, separated by blanks; of a
   frame its inputs in order, channels of a pixel side by side) to a line a frame: the elements of the
   outputs, then the cycles that it took. program.bwe and bitwright_network.h belong together.
       ./engine CONTROL_ADDRESS BUFFER program.bwe < levels.txt
       e.g. ./engine 0x43c00000 udmabuf0 program.bwe < levels.txt */
#include "bitwright_soc_engine.h"
#include "bitwright_network.h"
#include "design.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define LIMIT_MS 10000u

/* BW_OK with *more = 0 at the end of the file. */
static int read_frame(struct bw_device *device, int32_t *levels, int *more)
{
    uint32_t k;
    size_t n;

    *more = 0;
    for (k = 0; k < BITWRIGHT_INPUTS; k++) {
        for (n = 0; n < bitwright_region_levels(&bitwright_inputs[k]); n++)
            if (scanf("%" SCNd32, &levels[n]) != 1)
                return n == 0 && k == 0 ? BW_OK : BW_SHORT_FRAME;
        bw_engine_put(device, &bitwright_inputs[k], levels);
    }
    *more = 1;
    return BW_OK;
}

static int run(struct bw_device *device, int32_t *levels)
{
    for (;;) {
        struct bw_engine_end end;
        uint32_t k;
        size_t n;
        int more, status = read_frame(device, levels, &more);

        if (status != BW_OK || !more)
            return status;
        status = bw_engine_run(device, LIMIT_MS, &end);
        if (status != BW_OK)
            return status;
        for (k = 0; k < BITWRIGHT_NETWORK_OUTPUTS; k++) {
            bw_engine_get(device, &bitwright_outputs[k], levels);
            for (n = 0; n < bitwright_region_levels(&bitwright_outputs[k]); n++)
                printf("%" PRId32 " ", levels[n]);
        }
        printf("%" PRIu64 "\n", end.cycles);
    }
}

int main(int argc, char **argv)
{
    struct bw_device device;
    int32_t *levels = malloc(BITWRIGHT_MOST_ELEMENTS * sizeof *levels);
    int status;

    if (argc != 4) {
        fprintf(stderr, "usage: %s CONTROL_ADDRESS BUFFER PROGRAM < levels.txt\n", argv[0]);
        free(levels);
        return 2;
    }
    if (levels == NULL)
        return 1;
    status = bw_engine_open(&device, strtoull(argv[1], NULL, 0), argv[2], BITWRIGHT_DIGEST,
                            LIMIT_MS);
    if (status == BW_OK) {
        status = bw_engine_load(&device, argv[3], BITWRIGHT_NETWORK_WORDS,
                                BITWRIGHT_NETWORK_WORD_BYTES, BITWRIGHT_WORD_BYTES);
        if (status == BW_OK)
            status = run(&device, levels);
        bw_close(&device);
    }
    if (status != BW_OK)
        fprintf(stderr, "%s\n", bw_text(status));
    free(levels);
    return status == BW_OK ? 0 : 1;
}
