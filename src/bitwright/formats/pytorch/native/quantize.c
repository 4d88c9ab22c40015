// SPDX-License-Identifier: Apache-2.0
// Quantize and dequantize float32: y = float(unit * level(x / unit)), or if `plain` only
// float(level(x / unit)), all of it in double, as `formats/pytorch/fake_quantize.py` does with torch
// operations. No fused multiply-add: it would round once where the definition rounds twice. Every
// loop body is branch-free, so that compilers vectorize.
#include "quantize.h"

#include <stdlib.h>
#include <string.h>

#include "thread_pool.h"

DEFINE_ROUNDED(by_rule, double, )

INLINE uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE double from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// 2^floor(log2 |x|); 0 for zero and denormals.
INLINE double binade(double x)
{
    return from_bits(bits_of(x) & 0x7ff0000000000000u);
}

INLINE double clip(double x, double low, double high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

INLINE double rounded(double x, int mode, double u)
{
    return mode == STOCHASTIC ? floor(x) + (u < x - floor(x) ? 1 : 0) : by_rule(x, mode);
}

INLINE double even_level(const Spec *s, double r, int mode, double u)
{
    // The ends are integers: clipping before rounding is the same as after.
    return rounded(clip(r, s->low, s->high), mode, u);
}

INLINE double sign_level(const Spec *s, double r, int mode, double u)
{
    (void)s;
    if (mode == STOCHASTIC)
        return u < (r + 1) * 0.5 ? 1 : -1;
    return r >= 0 ? 1 : -1;
}

INLINE double minifloat_level(const Spec *s, double r, int mode, double u)
{
    double scale = from_bits((uint64_t)(1023 - s->mantissa) << 52);
    double x = clip(r, s->low, s->high);
    double quantum = binade(x) * scale;
    quantum = quantum < 1 ? 1 : quantum;
    double level;
    if (mode == HALF_EVEN) {
        double magic = quantum * 0x1.8p52; // its last place is the quantum
        level = (x + magic) - magic;
    } else {
        double inverse = from_bits(0x7fe0000000000000u - bits_of(quantum));
        level = rounded(x * inverse, mode, u) * quantum;
    }
    level = clip(level, s->low, s->high);
    double flushed = from_bits((uint64_t)(1023 + s->mantissa) << 52);
    return s->flush && fabs(level) <= flushed ? 0 : level;
}

INLINE double power_level(const Spec *s, double r, int mode, double u)
{
    double size = fabs(r);
    double x = size > s->high ? s->high : size;
    double power = binade(x);
    int up;
    if (mode == STOCHASTIC)
        up = power > 0 && u < log2(x / (2 * power)) + 1;
    else if (mode == UP || mode == DOWN)
        up = mode == UP && x > power;
    else if (mode == CEIL || mode == FLOOR)
        up = (r > 0) == (mode == CEIL) && x > power;
    else
        up = x >= power * (2 * 0x1.6a09e667f3bcdp-1); // sqrt(1/2)
    double level = clip(up ? 2 * power : power, 1, s->high);
    if (s->zero) {
        int vanishes = mode == STOCHASTIC ? u >= size : rounded(r, mode, u) == 0;
        level = vanishes && size < 1 ? 0 : level;
    }
    return r < 0 ? -level : level;
}

// One loop for each family and rule, the common rules with two ways to divide.
#define LOOP(LEVEL, MODE, RATIO)                                                   \
    for (int64_t i = 0; i < n; i++) {                                              \
        double value = x[i], u = (MODE) == STOCHASTIC ? uniform(draw[i]) : 0;      \
        y[i] = (float)((LEVEL(spec, RATIO, MODE, u) + 0.0) * out);                 \
    }
#define DIVIDE(LEVEL, MODE)                                                        \
    LOOP(LEVEL, MODE, value / unit)                                                \
    break;
#define BOTH(LEVEL, MODE)                                                          \
    if (inverse == 0) {                                                            \
        DIVIDE(LEVEL, MODE)                                                        \
    }                                                                              \
    LOOP(LEVEL, MODE, value * inverse)                                             \
    break;
#define FAMILY(NAME, LEVEL)                                                        \
    static void NAME(const Spec *given, const float *restrict x, float *restrict y, int64_t n, \
                     double unit, double inverse, const uint32_t *restrict draw)   \
    {                                                                              \
        const Spec copy = *given, *spec = &copy;                                   \
        const double out = out_unit(spec, unit);                                   \
        switch (spec->mode) {                                                      \
        case HALF_EVEN:                                                            \
            BOTH(LEVEL, HALF_EVEN)                                                 \
        case HALF_AWAY:                                                            \
            BOTH(LEVEL, HALF_AWAY)                                                 \
        case HALF_ZERO:                                                            \
            DIVIDE(LEVEL, HALF_ZERO)                                                 \
        case HALF_UP:                                                              \
            DIVIDE(LEVEL, HALF_UP)                                                   \
        case HALF_DOWN:                                                            \
            DIVIDE(LEVEL, HALF_DOWN)                                                 \
        case FLOOR:                                                                \
            DIVIDE(LEVEL, FLOOR)                                                     \
        case CEIL:                                                                 \
            DIVIDE(LEVEL, CEIL)                                                      \
        case UP:                                                                   \
            DIVIDE(LEVEL, UP)                                                        \
        case DOWN:                                                                 \
            DIVIDE(LEVEL, DOWN)                                                      \
        default:                                                                   \
            BOTH(LEVEL, STOCHASTIC)                                                \
        }                                                                          \
    }

FAMILY(even, even_level)
FAMILY(minifloat, minifloat_level)
FAMILY(powers, power_level)

static void sign(const Spec *spec, const float *restrict x, float *restrict y, int64_t n, double unit,
                 const uint32_t *restrict draw)
{
    const double out = out_unit(spec, unit);
    if (spec->mode == STOCHASTIC) {
        LOOP(sign_level, STOCHASTIC, value / unit)
    } else {
        LOOP(sign_level, HALF_EVEN, value / unit)
    }
}

// 1 / unit if that is exact, so that multiplying is dividing; else 0.
static double exact_inverse(double unit)
{
    int exponent;
    if (frexp(unit, &exponent) != 0.5 || exponent < -800 || exponent > 800)
        return 0;
    return ldexp(1.0, 1 - exponent);
}

static void piece(const Spec *spec, const float *x, float *y, int64_t n, double unit, double inverse,
                  const uint32_t *draw)
{
    if (spec->kind == EVEN)
        even(spec, x, y, n, unit, inverse, draw);
    else if (spec->kind == SIGN)
        sign(spec, x, y, n, unit, draw);
    else if (spec->kind == MINIFLOAT)
        minifloat(spec, x, y, n, unit, inverse, draw);
    else if (spec->kind == POWERS)
        powers(spec, x, y, n, unit, inverse, draw);
    else
        table_stochastic(spec, x, y, n, unit, draw);
}

// Elements begin .. end of one unit.
static void run(const Spec *spec, const float *x, float *y, int64_t begin, int64_t end, double unit,
                Noise *noise, Table *table)
{
    double inverse = exact_inverse(unit);
    if (spec->kind == TABLE && spec->mode != STOCHASTIC) {
        table_run(spec, x + begin, y + begin, end - begin, unit, table);
        return;
    }
    if (spec->mode != STOCHASTIC) {
        piece(spec, x + begin, y + begin, end - begin, unit, inverse, 0);
        return;
    }
    while (begin < end) {
        int64_t group = begin / GROUP, stop = (group + 1) * GROUP;
        stop = stop < end ? stop : end;
        const uint32_t *draw = noise_of(noise, group) + (begin - group * GROUP);
        piece(spec, x + begin, y + begin, stop - begin, unit, inverse, draw);
        begin = stop;
    }
}

static int not_a_number(const float *x, int64_t n)
{
    int found = 0;
    for (int64_t i = 0; i < n; i++)
        found |= x[i] != x[i];
    return found ? SAW_NAN : 0;
}

// The shared scale of a block (OCP MX 1.0, section 6.3), or 0 if a value is not finite.
static double block_scale(const Spec *spec, const float *x, int64_t n)
{
    uint32_t largest = 0; // magnitudes ascend with their bits
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    if (largest >= 0x7f800000u)
        return 0;
    float value;
    memcpy(&value, &largest, sizeof value);
    int64_t exponent = (int64_t)(bits_of((double)value) >> 52) - 1023 - spec->top_exponent;
    if (largest == 0 || exponent < -127)
        exponent = -127;
    return from_bits((uint64_t)((exponent > 127 ? 127 : exponent) + 1023) << 52);
}

// Element i of the tensor has the unit units[i / inner % n_units]; with blocks, which begin anew
// every `inner` elements, the units are their own.
typedef struct {
    const Spec *spec;
    const float *x;
    float *y;
    int64_t count, length; // elements, and those of a task
    const double *units;
    int64_t n_units, inner;
    uint64_t seed;
    int64_t next; // task
    int flags;
} Job;

// Elements begin .. end; returns flags.
static int stretch(const Job *job, int64_t begin, int64_t end)
{
    enum { STRETCH = 1 << 14 }; // looked through for NaN, then read again from the cache
    const Spec *spec = job->spec;
    Noise noise = {.seed = job->seed, .group = -1};
    Table table = {0};
    int flags = 0;
    while (begin < end) {
        int64_t row = begin / job->inner, stop = (row + 1) * job->inner;
        int64_t longest = begin + (spec->block ? spec->block : STRETCH);
        stop = stop < longest ? stop : longest;
        stop = stop < end ? stop : end;
        double unit;
        if (spec->block) {
            double scale = block_scale(spec, job->x + begin, stop - begin);
            flags |= scale == 0 ? SAW_NAN | SAW_INFINITY : 0;
            unit = (scale == 0 ? 1 : scale) * spec->lsb;
        } else {
            flags |= not_a_number(job->x + begin, stop - begin);
            unit = job->units[row % job->n_units];
        }
        run(spec, job->x, job->y, begin, stop, unit, &noise, &table);
        begin = stop;
    }
    free(table.limits);
    return flags;
}

static void work(void *given)
{
    Job *job = given;
    int flags = 0;
    for (;;) {
        int64_t begin = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED) * job->length;
        if (begin >= job->count)
            break;
        int64_t end = begin + job->length;
        flags |= stretch(job, begin, end < job->count ? end : job->count);
    }
    __atomic_fetch_or(&job->flags, flags, __ATOMIC_RELAXED);
}

// A tensor of `count` elements, `length` of them a task; see `Job`. Returns flags.
int64_t bw_quantize(const Spec *spec, const float *x, float *y, int64_t count, int64_t length,
                    const double *units, int64_t n_units, int64_t inner, uint64_t seed,
                    int64_t threads)
{
    Job job = {spec, x, y, count, length, units, n_units, inner, seed, 0, 0};
    bw_run_threads(work, &job, threads);
    return job.flags;
}

int64_t bw_spec_size(void)
{
    return (int64_t)sizeof(Spec);
}
