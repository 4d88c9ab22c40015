// SPDX-License-Identifier: Apache-2.0
// What `formats/pytorch/quantize_library.py` declares with the same fields.
#ifndef BW_QUANTIZE_H
#define BW_QUANTIZE_H
#include <stdint.h>

#include "noise.h"
#include "rounding.h"

enum kind { EVEN, SIGN, MINIFLOAT, POWERS, TABLE };
enum flag { SAW_NAN = 1, SAW_INFINITY = 2 };

typedef struct {
    int64_t kind, mode;
    int64_t mantissa, flush;     // MINIFLOAT
    int64_t zero;                // POWERS: level 0 exists
    int64_t count, room;         // TABLE: levels, and the power of two that holds them
    int64_t block, top_exponent; // neighbours that share a power of two; 0: none do
    int64_t plain;               // results are levels, not reals
    double low, high;            // smallest and largest level (less the zero point)
    double lsb;
    // TABLE, `room` each: limits[k] is the smallest ratio that goes to level k + 1, infinity from
    // the last level on, which is repeated.
    const double *levels, *limits;
} Spec;

// Limits and values of a table in float32, for the unit that was asked for last.
typedef struct {
    double unit;
    float *limits, *values;
} Table;

void table_run(const Spec *spec, const float *x, float *y, int64_t n, double unit, Table *table);
void table_stochastic(const Spec *spec, const float *x, float *y, int64_t n, double unit,
                      const uint32_t *draw);

// What a level is multiplied with.
static inline double out_unit(const Spec *spec, double unit)
{
    return spec->plain ? 1 : unit;
}

static inline double uniform(uint32_t draw)
{
    // Through signed integers, which vector units convert.
    return ((double)(int32_t)(draw ^ 0x80000000u) + 2147483648.0) * 0x1p-32;
}
#endif
