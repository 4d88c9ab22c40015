// SPDX-License-Identifier: Apache-2.0
// float32 to integers with one power of two: level = clip(round(x * 2^exponent), low, high), as
// `low_precision/arithmetic/operand_quantizer.py` defines it. Loop bodies are branch-free, so that
// compilers vectorize them.
#include <stdlib.h>
#include <string.h>

#include "noise.h"
#include "rounding.h"
#include "thread_pool.h"

DEFINE_ROUNDED(rounded, float, f)

enum { LANES = 32, STRETCH = 1 << 15, MOST_THREADS = 64 };
// Of a group of words, each element of the first half of a pair takes one as it is, each of the
// second half one rotated by half its length; of both the upper 24 bits.
enum { PAIR = 2 * GROUP, BITS = 24 };

// What `formats/pytorch/quantize_library.py` declares with the same fields.
typedef struct {
    const float *x;
    void *levels;
    int64_t count;
    int64_t pixels, channels; // x is (images, channels, pixels) in memory; 1 channel: in order
    int64_t bytes;            // of a level: 1, 2 or 4
    int64_t mode;
    int64_t low, high;        // levels
    int64_t dynamic;          // the exponent is to be found
    int64_t exponent;         // -120 .. 120; set if dynamic
    int64_t threads;
    uint64_t seed;
    int64_t bad;              // set: NaN or an infinity in x
} Levels;

typedef struct {
    Levels *given;
    int64_t next, length, tasks, threads;
    float low[MOST_THREADS], high[MOST_THREADS];
    int bad[MOST_THREADS];
    int failed;
} Job;

INLINE int64_t next_task(Job *job)
{
    return __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
}

// Smallest and largest element; x * 0 is not 0 for what is not finite.
static void extremes(void *given)
{
    Job *job = given;
    const int64_t count = job->given->count;
    float low[LANES] = {0}, high[LANES] = {0}, odd[LANES] = {0};
    for (int64_t task = next_task(job); task < job->tasks; task = next_task(job)) {
        int64_t i = task * job->length, end = i + job->length < count ? i + job->length : count;
        const float *x = job->given->x;
        for (; i + LANES <= end; i += LANES)
            for (int j = 0; j < LANES; j++) {
                float value = x[i + j];
                low[j] = value < low[j] ? value : low[j];
                high[j] = value > high[j] ? value : high[j];
                odd[j] += value * 0.0f;
            }
        for (; i < end; i++) {
            low[0] = x[i] < low[0] ? x[i] : low[0];
            high[0] = x[i] > high[0] ? x[i] : high[0];
            odd[0] += x[i] * 0.0f;
        }
    }
    int64_t thread = __atomic_fetch_add(&job->threads, 1, __ATOMIC_RELAXED);
    for (int j = 0; j < LANES; j++) {
        job->low[thread] = low[j] < job->low[thread] ? low[j] : job->low[thread];
        job->high[thread] = high[j] > job->high[thread] ? high[j] : job->high[thread];
        job->bad[thread] |= odd[j] != 0;
    }
}

// `scale_rules.dynamic_exponent`.
static int64_t exponent_of(const Levels *given, double low, double high)
{
    double smallest = INFINITY;
    if (high > 0)
        smallest = ((double)given->high + 0.5) / high;
    if (low < 0 && given->low < 0)
        smallest = fmin(smallest, ((double)given->low - 0.5) / low);
    if (isinf(smallest))
        return 0; // float32 divides to no infinity in double
    int exponent;
    frexp(smallest, &exponent);
    return exponent - 1 < -120 ? -120 : exponent - 1 > 120 ? 120 : exponent - 1;
}

// The ends are integers: clipping before rounding is the same as after.
INLINE float clipped(float x, float low, float high)
{
    x = x < high ? x : high;
    return x > low ? x : low;
}

INLINE int32_t fraction(uint32_t word, int second)
{
    return (int32_t)((second ? word << 16 | word >> 16 : word) >> (32 - BITS));
}

// (rint(x * 2^24) + u) / 2^24, rounded down. With 8 bits the sum fits into 32.
INLINE int32_t narrow_sum(float x, int32_t u)
{
    return ((int32_t)rintf(x * 0x1p24f) + u) >> BITS;
}

INLINE int32_t wide_sum(float x, int32_t u)
{
    float whole = floorf(x);
    return (int32_t)whole + (((int32_t)rintf((x - whole) * 0x1p24f) + u) >> BITS);
}

#define LOOP(TYPE, LEVEL)                                                          \
    {                                                                              \
        TYPE *restrict y = (TYPE *)given->levels + begin;                          \
        for (int64_t i = 0; i < n; i++) {                                          \
            float value = clipped(x[i] * unit, low, high);                         \
            y[i] = (TYPE)(LEVEL);                                                  \
        }                                                                          \
        break;                                                                     \
    }
#define FIXED(TYPE, MODE)                                                          \
    case MODE:                                                                     \
        LOOP(TYPE, (int32_t)rounded(value, MODE))
#define KERNEL(NAME, TYPE, SUM)                                                    \
    static void NAME(const Levels *given, const float *restrict x, int64_t begin, int64_t n, \
                     const uint32_t *restrict draw)                                \
    {                                                                              \
        const float unit = ldexpf(1.0f, (int)given->exponent);                     \
        const float low = (float)given->low, high = (float)given->high;            \
        switch (given->mode) {                                                     \
        default:                                                                   \
            if (begin / GROUP % 2)                                                 \
                LOOP(TYPE, SUM(value, fraction(draw[i], 1)))                       \
            LOOP(TYPE, SUM(value, fraction(draw[i], 0)))                           \
            FIXED(TYPE, HALF_EVEN)                                                 \
            FIXED(TYPE, HALF_AWAY)                                                 \
            FIXED(TYPE, HALF_ZERO)                                                 \
            FIXED(TYPE, HALF_UP)                                                   \
            FIXED(TYPE, HALF_DOWN)                                                 \
            FIXED(TYPE, FLOOR)                                                     \
            FIXED(TYPE, CEIL)                                                      \
            FIXED(TYPE, UP)                                                        \
            FIXED(TYPE, DOWN)                                                      \
        }                                                                          \
    }

KERNEL(to_1_byte, int8_t, narrow_sum)
KERNEL(to_2_bytes, int16_t, wide_sum)
KERNEL(to_4_bytes, int32_t, wide_sum)

// Elements begin .. end of the result's order, which lie at x.
static void run(const Levels *given, const float *x, int64_t begin, int64_t end, Noise *noise)
{
    while (begin < end) {
        int64_t group = begin / GROUP, stop = given->mode == STOCHASTIC ? (group + 1) * GROUP : end;
        stop = stop < end ? stop : end;
        const uint32_t *draw = 0;
        if (given->mode == STOCHASTIC)
            draw = noise_of(noise, group / 2) + (begin - group * GROUP);
        if (given->bytes == 1)
            to_1_byte(given, x, begin, stop - begin, draw);
        else if (given->bytes == 2)
            to_2_bytes(given, x, begin, stop - begin, draw);
        else
            to_4_bytes(given, x, begin, stop - begin, draw);
        x += stop - begin;
        begin = stop;
    }
}

// Pixels first .. first + n of all images together, their channels side by side.
static void gather(const Levels *given, int64_t first, int64_t n, float *restrict rows)
{
    const int64_t channels = given->channels, pixels = given->pixels;
    while (n > 0) {
        int64_t image = first / pixels, place = first % pixels;
        int64_t here = pixels - place < n ? pixels - place : n;
        const float *x = given->x + image * channels * pixels + place;
        for (int64_t p = 0; p < here; p += 8) {
            int64_t some = here - p < 8 ? here - p : 8;
            for (int64_t c = 0; c < channels; c++)
                for (int64_t i = 0; i < some; i++)
                    rows[(p + i) * channels + c] = x[c * pixels + p + i];
        }
        rows += here * channels;
        first += here;
        n -= here;
    }
}

static void quantize(void *given)
{
    Job *job = given;
    const Levels *q = job->given;
    Noise noise = {.seed = q->seed, .group = -1};
    float *rows = 0;
    if (q->channels > 1) {
        rows = malloc((size_t)job->length * sizeof *rows);
        if (!rows) {
            __atomic_store_n(&job->failed, 1, __ATOMIC_RELAXED);
            return;
        }
    }
    for (int64_t task = next_task(job); task < job->tasks; task = next_task(job)) {
        int64_t begin = task * job->length, end = begin + job->length;
        end = end < q->count ? end : q->count;
        if (rows)
            gather(q, begin / q->channels, (end - begin) / q->channels, rows);
        run(q, rows ? rows : q->x + begin, begin, end, &noise);
    }
    free(rows);
}

static void start(Job *job, void (*work)(void *), int64_t length)
{
    int64_t count = job->given->count, threads = job->given->threads;
    job->next = 0;
    job->length = length;
    job->tasks = (count + length - 1) / length;
    threads = threads < job->tasks ? threads : job->tasks;
    bw_run_threads(work, job, threads < MOST_THREADS ? threads : MOST_THREADS);
}

// Fills `levels`, and in the structure what is set. Returns 0, or 1 for lack of memory.
int64_t bw_quantize_levels(Levels *given)
{
    Job job = {.given = given};
    start(&job, extremes, STRETCH);
    double low = 0, high = 0;
    given->bad = 0;
    for (int64_t thread = 0; thread < job.threads; thread++) {
        low = job.low[thread] < low ? job.low[thread] : low;
        high = job.high[thread] > high ? job.high[thread] : high;
        given->bad |= job.bad[thread];
    }
    if (given->bad)
        return 0;
    if (given->dynamic)
        given->exponent = exponent_of(given, low, high);
    // A task ends with a pair of groups, and with a pixel.
    int64_t step = PAIR * given->channels, length = step;
    while (length < STRETCH / 2)
        length += step;
    start(&job, quantize, length);
    return job.failed;
}

int64_t bw_levels_size(void)
{
    return (int64_t)sizeof(Levels);
}
