// SPDX-License-Identifier: Apache-2.0
// The innermost loops: ROWS x PANEL sums stay in registers while the pairs stream by.
#include "product.h"

#define INLINE static inline __attribute__((always_inline))

INLINE void sum_runs(const int rows, const int16_t *const *a, const Run *runs, int64_t count,
                     Vec sums[ROWS][2]) {
  const int16_t *start[ROWS];
#pragma GCC unroll 12
  for (int i = 0; i < rows; i++) {
    start[i] = a[i];
    sums[i][0] = sums[i][1] = vec_zero();
  }
  for (int64_t r = 0; r < count; r++) {
    const int16_t *b = runs[r].b;
    int64_t at = runs[r].a;
    const int64_t end = at + 2 * runs[r].pairs;
    for (; at < end; at += 2, b += 2 * PANEL) {
      const Vec low = vec_load(b), high = vec_load(b + PANEL);
#pragma GCC unroll 12
      for (int i = 0; i < rows; i++) {
        int32_t both;
        memcpy(&both, start[i] + at, sizeof both);
        const Vec pair = vec_pair(both);
        sums[i][0] = vec_sum(sums[i][0], pair, low);
        sums[i][1] = vec_sum(sums[i][1], pair, high);
      }
    }
  }
}

INLINE void tile_sums(const int rows, const int16_t *const *a, const Run *runs, int64_t count,
                      int32_t *out) {
  Vec sums[ROWS][2];
  sum_runs(rows, a, runs, count, sums);
#pragma GCC unroll 12
  for (int i = 0; i < rows; i++) {
    vec_store(out + i * PANEL, sums[i][0]);
    vec_store(out + i * PANEL + LANES, sums[i][1]);
  }
}

INLINE void tile_floats(const int rows, const int16_t *const *a, const Run *runs, int64_t count,
                        float unit, float *const *out, int64_t width) {
  Vec sums[ROWS][2];
  sum_runs(rows, a, runs, count, sums);
  if (width == PANEL) {
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
      vec_scaled(out[i], sums[i][0], unit);
      vec_scaled(out[i] + LANES, sums[i][1], unit);
    }
    return;
  }
  float line[ROWS][PANEL];
#pragma GCC unroll 12
  for (int i = 0; i < rows; i++) {
    vec_scaled(line[i], sums[i][0], unit);
    vec_scaled(line[i] + LANES, sums[i][1], unit);
  }
  for (int i = 0; i < rows; i++) memcpy(out[i], line[i], (size_t)width * sizeof(float));
}

#define EACH_ROWS_6(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6)
#if ROWS == 12
#define EACH_ROWS(DO) EACH_ROWS_6(DO) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12)
#elif ROWS == 6
#define EACH_ROWS(DO) EACH_ROWS_6(DO)
#else
#define EACH_ROWS(DO) DO(1) DO(2) DO(3) DO(4)
#endif

// sums[row][output]; `rows` is 1 .. ROWS.
void bw_tile_sums(int rows, const int16_t *const *a, const Run *runs, int64_t count,
                  int32_t *sums) {
  switch (rows) {
#define SUMS(n) \
  case n: tile_sums(n, a, runs, count, sums); return;
    EACH_ROWS(SUMS)
  }
}

// The sums times `unit`, as floats, `width` of them a row.
void bw_tile_floats(int rows, const int16_t *const *a, const Run *runs, int64_t count, float unit,
                    float *const *out, int64_t width) {
  switch (rows) {
#define FLOATS(n) \
  case n: tile_floats(n, a, runs, count, unit, out, width); return;
    EACH_ROWS(FLOATS)
  }
}

// sums[row][output] of any number of rows that lie `step` elements apart, over one run.
void bw_tile_strip(int64_t rows, const int16_t *a, int64_t step, const int16_t *b, int64_t pairs,
                   int32_t *sums) {
  const Run run = {0, b, pairs};
  const int16_t *start[ROWS];
  for (; rows >= ROWS; rows -= ROWS, a += ROWS * step, sums += ROWS * PANEL) {
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; i++) start[i] = a + i * step;
    tile_sums(ROWS, start, &run, 1, sums);
  }
  for (int i = 0; i < rows; i++) start[i] = a + i * step;
  if (rows > 0) bw_tile_sums((int)rows, start, &run, 1, sums);
}
