// SPDX-License-Identifier: Apache-2.0
// Sums of squares of levels, which bound the sums of products.
#include <stdlib.h>

#include "product.h"

typedef struct {
    const void *levels;
    int64_t bytes, pixels, channels, length, tasks, next;
    int64_t *sums; // of each channel
    int failed;
} Squares;

static void add_squares(void *given)
{
    Squares *job = given;
    const int64_t channels = job->channels;
    int64_t *sums = calloc((size_t)channels, sizeof *sums);
    uint32_t *part = calloc((size_t)channels, sizeof *part); // 2^17 squares of 8 bits fit
    if (!sums || !part)
        __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
    else
        for (;;) {
            int64_t task = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
            if (task >= job->tasks)
                break;
            int64_t begin = task * job->length, end = begin + job->length;
            end = end < job->pixels ? end : job->pixels;
            if (job->bytes == 1) {
                const int8_t *x = (const int8_t *)job->levels + begin * channels;
                for (int64_t i = begin; i < end; i++, x += channels)
                    for (int64_t c = 0; c < channels; c++)
                        part[c] += (uint32_t)(x[c] * x[c]);
                for (int64_t c = 0; c < channels; c++) {
                    sums[c] += part[c];
                    part[c] = 0;
                }
            } else {
                const int16_t *x = (const int16_t *)job->levels + begin * channels;
                for (int64_t i = begin; i < end; i++, x += channels)
                    for (int64_t c = 0; c < channels; c++)
                        sums[c] += (int64_t)(x[c] * x[c]);
            }
        }
    for (int64_t c = 0; sums && c < channels; c++)
        __atomic_fetch_add(&job->sums[c], sums[c], __ATOMIC_RELAXED);
    free(sums);
    free(part);
}

// The largest sum of squares of a channel, of pixels whose channels lie side by side, each of 1 or
// 2 bytes; -1 for lack of memory.
int64_t bw_most_squares(const void *levels, int64_t bytes, int64_t pixels, int64_t channels,
                        int64_t threads)
{
    enum { ELEMENTS = 1 << 15, MOST = 1 << 16 };
    int64_t length = ELEMENTS / (channels ? channels : 1) + 1, most = 0;
    length = length < MOST ? length : MOST;
    Squares job = {levels, bytes, pixels, channels, length, (pixels + length - 1) / length, 0, 0, 0};
    job.sums = calloc((size_t)(channels ? channels : 1), sizeof *job.sums);
    if (!job.sums)
        return -1;
    bw_run_threads(add_squares, &job, threads);
    for (int64_t c = 0; c < channels; c++)
        most = job.sums[c] > most ? job.sums[c] : most;
    free(job.sums);
    return job.failed ? -1 : most;
}
