// SPDX-License-Identifier: Apache-2.0
// Exact products of small integers on 16-bit multipliers: pairs of products summed into 32 bits.
#ifndef BW_PRODUCT_H
#define BW_PRODUCT_H

#include <stdint.h>
#include <string.h>

#include "thread_pool.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
typedef __m512i Vec;
#define LANES 16
#define ROWS 12
static inline Vec vec_zero(void) { return _mm512_setzero_si512(); }
static inline Vec vec_load(const int16_t *p) { return _mm512_loadu_si512(p); }
static inline Vec vec_pair(int32_t pair) { return _mm512_set1_epi32(pair); }
static inline Vec vec_sum(Vec sum, Vec a, Vec b) { return _mm512_dpwssd_epi32(sum, a, b); }
static inline void vec_store(int32_t *p, Vec v) { _mm512_storeu_si512(p, v); }
static inline void vec_scaled(float *p, Vec v, float unit) {
  _mm512_storeu_ps(p, _mm512_mul_ps(_mm512_cvtepi32_ps(v), _mm512_set1_ps(unit)));
}
#elif defined(__AVX2__)
#include <immintrin.h>
typedef __m256i Vec;
#define LANES 8
#define ROWS 6
static inline Vec vec_zero(void) { return _mm256_setzero_si256(); }
static inline Vec vec_load(const int16_t *p) { return _mm256_loadu_si256((const Vec *)p); }
static inline Vec vec_pair(int32_t pair) { return _mm256_set1_epi32(pair); }
static inline Vec vec_sum(Vec sum, Vec a, Vec b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}
static inline void vec_store(int32_t *p, Vec v) { _mm256_storeu_si256((Vec *)p, v); }
static inline void vec_scaled(float *p, Vec v, float unit) {
  _mm256_storeu_ps(p, _mm256_mul_ps(_mm256_cvtepi32_ps(v), _mm256_set1_ps(unit)));
}
#else
#define LANES 4
#define ROWS 4
typedef int32_t Vec __attribute__((vector_size(16)));
static inline Vec vec_zero(void) { return (Vec){0}; }
static inline Vec vec_load(const int16_t *p) {
  Vec v;
  memcpy(&v, p, sizeof v);
  return v;
}
static inline Vec vec_pair(int32_t pair) { return (Vec){pair, pair, pair, pair}; }
static inline Vec vec_sum(Vec sum, Vec a, Vec b) {
  const Vec low = ((Vec)(a << 16) >> 16) * ((Vec)(b << 16) >> 16);
  return sum + low + (a >> 16) * (b >> 16);
}
static inline void vec_store(int32_t *p, Vec v) { memcpy(p, &v, sizeof v); }
static inline void vec_scaled(float *p, Vec v, float unit) {
  for (int i = 0; i < LANES; i++) p[i] = (float)v[i] * unit;
}
#endif

#define PANEL (2 * LANES)  // results that one row of a tile has

// A stretch of the sum: `pairs` pairs from `a` elements behind each row's start, and from `b`.
typedef struct {
  int64_t a;
  const int16_t *b;
  int64_t pairs;
} Run;

// What positions of the result gather from the source along one axis: position i has the entries
// start[i] .. start[i + 1]: `length` neighbours from `source` on meet taps from `tap` on.
typedef struct {
  const int32_t *start, *source, *tap, *length;
} GatherIndices;

// Geometry of `bw_product_correlate`; `bw_product_weight` names its images `source` and `result`.
typedef struct {
  int64_t images, channels, outputs;
  int64_t height, width;                  // of the source
  int64_t out_height, out_width;          // of the result
  int64_t kernel_height, kernel_width;    // taps
  int64_t left_bytes, right_bytes;        // 1 or 2: int8 or int16 operands
  int64_t limit;                          // pairs that surely fit into 32 bits
  int64_t split;                          // 1: the right operand in two halves of 8 bits
  int64_t exponent;                       // result = sum * 2^-exponent
  int64_t threads;
  int64_t transposed;                     // weights are (channels, taps, outputs) in memory
  GatherIndices rows, columns;
  const int32_t *row_slot, *column_slot;  // where the weights' taps lie; columns of the source
  int64_t row_offset, column_offset;      // Winograd: the source's place of tap 0 at position 0
} Shape;

void bw_tile_sums(int rows, const int16_t *const *a, const Run *runs, int64_t count, int32_t *sums);
void bw_tile_floats(int rows, const int16_t *const *a, const Run *runs, int64_t count, float unit,
                    float *const *out, int64_t width);
void bw_tile_strip(int64_t rows, const int16_t *a, int64_t step, const int16_t *b, int64_t pairs,
                   int32_t *sums);
void *bw_allocate(int64_t bytes);
int bw_direct(const Shape *shape, int64_t pairs);
void bw_add_sums(double *total, const int32_t *sums, int64_t count, double factor);
void bw_widen(const void *source, int64_t bytes, int64_t from, int16_t *target, int64_t count);

#endif
