// SPDX-License-Identifier: Apache-2.0
// Formats that are a list of levels: the index is the number of limits that a value has reached.
#include "quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 32, WORTH = 8 };

// The smallest float that divided by the unit reaches the limit: deciding on it is deciding on the
// ratio, since division is monotone.
static float float_limit(double limit, double unit)
{
    float value = (float)(limit * unit);
    while (value > -INFINITY && (double)value / unit >= limit)
        value = nextafterf(value, -INFINITY);
    while (value < INFINITY && (double)value / unit < limit)
        value = nextafterf(value, INFINITY);
    return value;
}

// Levels of a group of values, step by step over all of it, which vectorizes. An infinity may reach
// the padding, whose levels are the last one.
static void group_few(const float *restrict x, float *restrict y, int64_t n, const Table *table,
                      int64_t steps)
{
    int32_t index[GROUP];
    for (int64_t i = 0; i < n; i++)
        index[i] = 0;
    for (int64_t k = 0; k < steps; k++) {
        float limit = table->limits[k];
        for (int64_t i = 0; i < n; i++)
            index[i] += x[i] >= limit;
    }
    for (int64_t i = 0; i < n; i++)
        y[i] = table->values[index[i]];
}

static void group_many(const float *restrict x, float *restrict y, int64_t n, const Table *table,
                       int32_t room)
{
    const float *restrict limits = table->limits;
    int32_t index[GROUP];
    for (int64_t i = 0; i < n; i++)
        index[i] = 0;
    for (int32_t step = room / 2; step > 0; step /= 2)
        for (int64_t i = 0; i < n; i++)
            index[i] += x[i] >= limits[index[i] + step - 1] ? step : 0;
    for (int64_t i = 0; i < n; i++)
        y[i] = table->values[index[i]];
}

// The same on ratios: the index of the last limit that each has reached.
static void group_ratios(const Spec *spec, const double *restrict ratio, int64_t *restrict index,
                         int64_t n)
{
    const double *restrict limits = spec->limits; // reading it through `spec` hinders vectors
    for (int64_t i = 0; i < n; i++)
        index[i] = 0;
    if (spec->count <= FEW) { // gathering costs more than comparing with all
        for (int64_t k = 0; k < spec->count - 1; k++)
            for (int64_t i = 0; i < n; i++)
                index[i] += ratio[i] >= limits[k];
        return;
    }
    for (int64_t step = spec->room / 2; step > 0; step /= 2)
        for (int64_t i = 0; i < n; i++)
            index[i] += ratio[i] >= limits[index[i] + step - 1] ? step : 0;
}

// Fills the table; whether there is memory for it.
static int prepare(const Spec *spec, double unit, Table *table)
{
    if (!table->limits && !(table->limits = malloc(sizeof(float) * 2 * (size_t)spec->room)))
        return 0;
    if (table->unit == unit)
        return 1;
    table->unit = unit;
    table->values = table->limits + spec->room;
    for (int64_t k = 0; k < spec->room; k++) {
        table->limits[k] = k < spec->count - 1 ? float_limit(spec->limits[k], unit) : INFINITY;
        table->values[k] = (float)((spec->levels[k] + 0.0) * out_unit(spec, unit));
    }
    return 1;
}

void table_run(const Spec *spec, const float *x, float *y, int64_t n, double unit, Table *table)
{
    int worth = n >= WORTH * spec->count || (table->limits && table->unit == unit);
    int known = worth && prepare(spec, unit, table);
    for (int64_t begin = 0; begin < n; begin += GROUP, x += GROUP, y += GROUP) {
        int64_t m = n - begin < GROUP ? n - begin : GROUP;
        if (known && spec->count <= FEW) {
            group_few(x, y, m, table, spec->count - 1);
        } else if (known) {
            group_many(x, y, m, table, (int32_t)spec->room);
        } else {
            double ratio[GROUP];
            int64_t index[GROUP];
            for (int64_t i = 0; i < m; i++)
                ratio[i] = x[i] / unit;
            group_ratios(spec, ratio, index, m);
            for (int64_t i = 0; i < m; i++)
                y[i] = (float)((spec->levels[index[i]] + 0.0) * out_unit(spec, unit));
        }
    }
}

void table_stochastic(const Spec *spec, const float *x, float *y, int64_t n, double unit,
                      const uint32_t *draw)
{
    const double *restrict levels = spec->levels;
    const double out = out_unit(spec, unit);
    double ratio[GROUP] = {0}, lowest = levels[0], highest = levels[spec->count - 1];
    int64_t index[GROUP], last = spec->count > 1 ? spec->count - 2 : 0, next = spec->count > 1;
    for (int64_t i = 0; i < n; i++) {
        double r = x[i] / unit;
        r = r < lowest ? lowest : r;
        ratio[i] = r > highest ? highest : r;
    }
    group_ratios(spec, ratio, index, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t low = index[i] < last ? index[i] : last;
        double below = levels[low], above = levels[low + next];
        double share = (ratio[i] - below) / (above - below); // NaN, never more, where there is one
        y[i] = (float)(((uniform(draw[i]) < share ? above : below) + 0.0) * out);
    }
}
