/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the frames of a file of integers (text, separated by blanks) and prints those of the outputs,
   one line a frame and output:
       ./example CONTROL_ADDRESS BUFFER < levels.txt      e.g. ./example 0x43c00000 udmabuf0 */
#include "bitwright_soc.h"
#include "design.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static size_t elements(const struct bw_stream *stream)
{
    return (size_t)stream->beats * stream->lanes;
}

static int run(struct bw_device *device, int64_t *levels, int64_t *const results[])
{
    const struct bw_stream *input = &bitwright_streams[0];
    uint32_t k;
    size_t n;

    for (;;) {
        int status;

        for (n = 0; n < elements(input); n++)
            if (scanf("%" SCNd64, &levels[n]) != 1)
                return n == 0 ? BW_OK : BW_SHORT_FRAME;
        status = bw_run(device, bitwright_streams, BITWRIGHT_OUTPUTS, 1, levels, results, 1000);
        if (status != BW_OK)
            return status;
        for (k = 0; k < BITWRIGHT_OUTPUTS; k++) {
            printf("%s", bitwright_streams[k + 1].name);
            for (n = 0; n < elements(&bitwright_streams[k + 1]); n++)
                printf(" %" PRId64, results[k][n]);
            printf("\n");
        }
    }
}

int main(int argc, char **argv)
{
    struct bw_device device;
    int64_t *levels, *results[BITWRIGHT_OUTPUTS];
    uint32_t k;
    int status;

    if (argc != 3) {
        fprintf(stderr, "usage: %s CONTROL_ADDRESS BUFFER < levels.txt\n", argv[0]);
        return 2;
    }
    levels = malloc(elements(&bitwright_streams[0]) * sizeof *levels);
    for (k = 0; k < BITWRIGHT_OUTPUTS; k++) {
        results[k] = malloc(elements(&bitwright_streams[k + 1]) * sizeof **results);
        if (results[k] == NULL || levels == NULL)
            return 1;
    }
    status = bw_open(&device, strtoull(argv[1], NULL, 0), argv[2], BITWRIGHT_DIGEST,
                     BITWRIGHT_OUTPUTS);
    if (status == BW_OK) {
        status = run(&device, levels, results);
        bw_close(&device);
    }
    if (status != BW_OK)
        fprintf(stderr, "%s\n", bw_text(status));
    for (k = 0; k < BITWRIGHT_OUTPUTS; k++)
        free(results[k]);
    free(levels);
    return status == BW_OK ? 0 : 1;
}
