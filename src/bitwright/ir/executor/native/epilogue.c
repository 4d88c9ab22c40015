/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to finished accumulators: stored as they are, counted against thresholds, or multiplied and shifted.
 * Rows come in runs of at most BW_ACC_SIZE; tables are indexed by padded row.
 */
#include <string.h>

#include "plan.h"

#define RUN 16 /* rows handled at a time, so that the compiler vectorises the inner loops */

int64_t bw_requant_one(const bw_op *op, int64_t row, int64_t x);

int64_t bw_requant_one(const bw_op *op, int64_t row, int64_t x) {
  const int64_t value = x * op->multiplier[row] + op->addend[row];
  int drop = 0; /* a float rounds at the place that its magnitude says */
  if (op->significant && value != 0) {
    drop = 64 - __builtin_clzll((unsigned long long)(value < 0 ? -value : value)) - op->significant - op->shift;
    if (drop < 0) drop = 0;
  }
  const int shift = op->shift + drop;
  int64_t rounded = value >> shift;
  if (shift > 0 && op->rounding != BW_FLOOR) {
    const int64_t half = (int64_t)1 << (shift - 1);
    rounded = (value + half) >> shift;
    if (op->rounding == BW_HALF_EVEN && (value & (2 * half - 1)) == half) rounded -= rounded & 1;
  }
  rounded *= (int64_t)1 << drop;
  if (rounded < op->smallest && -rounded < op->smallest) rounded = 0;
  return rounded < op->lo ? op->lo : rounded > op->hi ? op->hi : rounded;
}

/* A requantization in doubles, where they hold every product (`steps` says so; their tables are in `threshold` and
 * `base`): exact, and the compiler makes vectors of it. */
#define REQUANT(NAME, ROUNDED)                                                                       \
  static void NAME(const bw_op *op, int64_t row, int count, int32_t *level) {                        \
    const double *times = (const double *)op->threshold + row, *plus = (const double *)op->base + row; \
    const double unit = 1.0 / (double)((int64_t)1 << op->shift);                                     \
    const double lo = (double)op->lo, hi = (double)op->hi;                                           \
    for (int j = 0; j < count; j++) {                                                                \
      const double value = (level[j] * times[j] + plus[j]) * unit;                                   \
      double rounded = ROUNDED;                                                                      \
      rounded = rounded < lo ? lo : rounded;                                                         \
      rounded = rounded > hi ? hi : rounded;                                                         \
      level[j] = (int32_t)rounded;                                                                   \
    }                                                                                                \
  }
REQUANT(requant_even, __builtin_rint(value))
REQUANT(requant_up, __builtin_floor(value + 0.5))
REQUANT(requant_floor, __builtin_floor(value))

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512BW__) && !defined(BW_GENERIC)
#define BW_REQUANT_BYTES 1
/* The usual case: doubles, bytes out; 8 rows at a time, and a last vector instead of rows one by one. */
BW_INLINE void requant_bytes(const bw_op *op, const void *acc, int64_t row, int count, const int rounding,
                             uint8_t *pixel) {
  const double *times = (const double *)op->threshold + row, *plus = (const double *)op->base + row;
  const __m512d unit = _mm512_set1_pd(1.0 / (double)((int64_t)1 << op->shift)), half = _mm512_set1_pd(0.5);
  const __m512d lo = _mm512_set1_pd((double)op->lo), hi = _mm512_set1_pd((double)op->hi);
  const __m256i zero = _mm256_set1_epi32(op->out.zero);
  for (int j = 0; j < count; j += 8) {
    const __mmask8 rows = (__mmask8)(count - j >= 8 ? 255 : (1 << (count - j)) - 1);
    const __m256i sum = op->narrow ? _mm256_cvtepi16_epi32(_mm_maskz_loadu_epi16(rows, (const int16_t *)acc + j))
                                   : _mm256_maskz_loadu_epi32(rows, (const int32_t *)acc + j);
    const __m512d given = _mm512_cvtepi32_pd(sum);
    __m512d value = _mm512_fmadd_pd(given, _mm512_loadu_pd(times + j), _mm512_loadu_pd(plus + j));
    value = _mm512_mul_pd(value, unit);
    if (rounding == BW_HALF_UP) value = _mm512_add_pd(value, half);
    value = rounding == BW_HALF_EVEN ? _mm512_roundscale_pd(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                                     : _mm512_roundscale_pd(value, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    value = _mm512_min_pd(_mm512_max_pd(value, lo), hi);
    const __m128i level = _mm256_cvtepi32_epi8(_mm256_sub_epi32(_mm512_cvttpd_epi32(value), zero));
    if (rows == 255) {
      _mm_storel_epi64((__m128i *)(pixel + j), level);
    } else {
      uint8_t rest[16];
      _mm_storeu_si128((__m128i *)rest, level);
      memcpy(pixel + j, rest, (size_t)(count - j));
    }
  }
}
#endif

static void requant_rows(const bw_op *op, int64_t row, int count, int32_t *level) {
  if (op->steps == 0)
    for (int j = 0; j < count; j++) level[j] = (int32_t)bw_requant_one(op, row + j, level[j]);
  else if (op->rounding == BW_HALF_EVEN) requant_even(op, row, count, level);
  else if (op->rounding == BW_HALF_UP) requant_up(op, row, count, level);
  else requant_floor(op, row, count, level);
}

BW_INLINE void put(const bw_op *op, const int32_t *level, int count, uint8_t *pixel) {
  if (op->out.kind == BW_U8) {
    const int32_t zero = op->out.zero;
    for (int j = 0; j < count; j++) pixel[j] = (uint8_t)(level[j] - zero);
    return;
  }
  for (int j = 0; j < count; j++) bw_store(pixel, op->out.kind, j, (int64_t)level[j] - op->out.zero);
}

#define COUNT_FEW(NAME, T)                                                                    \
  /* code = base + step * count of thresholds reached, for RUN rows. */                       \
  BW_INLINE void NAME(const bw_op *op, const T *acc, int64_t row, int64_t padded, T *code) {  \
    T count[RUN] = {0};                                                                       \
    const T *threshold = (const T *)op->threshold + row;                                      \
    for (int t = 0; t < op->steps; t++, threshold += padded)                                  \
      for (int j = 0; j < RUN; j++) count[j] = (T)(count[j] + (acc[j] >= threshold[j]));      \
    const T *base = (const T *)op->base + row, *step = (const T *)op->step + row;             \
    for (int j = 0; j < RUN; j++) code[j] = (T)(base[j] + step[j] * count[j]);                \
  }
COUNT_FEW(count_few16, int16_t)
COUNT_FEW(count_few32, int32_t)

#define COUNT_MANY(NAME, T)                                                                    \
  BW_INLINE void NAME(const bw_op *op, const T *acc, int64_t row, int64_t padded, T *code) {   \
    for (int j = 0; j < RUN; j++) {                                                            \
      const T *threshold = (const T *)op->threshold + row + j;                                 \
      int64_t low = 0, high = op->steps; /* thresholds below `low` are reached, `high` is not */ \
      while (low < high) {                                                                     \
        const int64_t middle = (low + high) / 2;                                               \
        if (acc[j] >= threshold[middle * padded]) low = middle + 1; else high = middle;        \
      }                                                                                        \
      code[j] = (T)(((const T *)op->base)[row + j] + ((const T *)op->step)[row + j] * low);    \
    }                                                                                          \
  }
COUNT_MANY(count_many16, int16_t)
COUNT_MANY(count_many32, int32_t)

#define MANY 32 /* thresholds from which bisection beats comparing with all */

#define THRESHOLDS(NAME, T, FEW, MANY_FN)                                                     \
  static void NAME(const bw_op *op, const T *acc, int64_t row, int count, uint8_t *pixel) {   \
    T code[RUN];                                                                              \
    for (int j = 0; j < count; j += RUN) {                                                    \
      const int run = count - j < RUN ? count - j : RUN;                                      \
      if (op->steps < MANY) FEW(op, acc + j, row + j, op->padded, code);                      \
      else MANY_FN(op, acc + j, row + j, op->padded, code);                                   \
      for (int i = 0; i < run; i++) bw_store(pixel, op->out.kind, j + i, code[i]);            \
    }                                                                                         \
  }
THRESHOLDS(thresholds16, int16_t, count_few16, count_many16)
THRESHOLDS(thresholds32, int32_t, count_few32, count_many32)

#ifdef BW_AVX2
/* The usual case: int16 accumulators, few thresholds, bytes out; 16 rows of all pixels at a time.
 * code = base + step * count = (base + step * steps) + step * sum over t of -(threshold[t] > acc). */
BW_INLINE void bytes_block(const bw_op *op, const int16_t *acc, int width, int64_t row, int count,
                           const int pixels, uint8_t *const *to) {
  for (int j = 0; j < count; j += 16) {
    const int16_t *threshold = (const int16_t *)op->threshold + row + j;
    __m256i value[BW_MAX_PIXELS], missed[BW_MAX_PIXELS];
    for (int p = 0; p < pixels; p++) {
      value[p] = _mm256_loadu_si256((const __m256i *)(acc + p * width + j));
      missed[p] = _mm256_setzero_si256();
    }
    for (int t = 0; t < op->steps; t++, threshold += op->padded) {
      const __m256i level = _mm256_loadu_si256((const __m256i *)threshold);
      for (int p = 0; p < pixels; p++)
        missed[p] = _mm256_add_epi16(missed[p], _mm256_cmpgt_epi16(level, value[p]));
    }
    const __m256i step = _mm256_loadu_si256((const __m256i *)((const int16_t *)op->step + row + j));
    const __m256i base = _mm256_loadu_si256((const __m256i *)((const int16_t *)op->base + row + j));
    const __m256i top = _mm256_add_epi16(
        base, _mm256_mullo_epi16(step, _mm256_set1_epi16((short)op->steps)));
    for (int p = 0; p < pixels; p++) {
      const __m256i code = _mm256_add_epi16(top, _mm256_mullo_epi16(step, missed[p]));
      const __m128i byte =
          _mm_packus_epi16(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
      if (count - j >= 16) {
        _mm_storeu_si128((__m128i *)(to[p] + j), byte);
      } else {
        uint8_t rest[16];
        _mm_storeu_si128((__m128i *)rest, byte);
        memcpy(to[p] + j, rest, (size_t)(count - j));
      }
    }
  }
}
#endif

static void finish_pixel(const bw_op *op, const void *acc, int64_t row, int count, uint8_t *pixel) {
  if (op->epilogue == BW_EP_THRESHOLD) {
    if (op->narrow) thresholds16(op, (const int16_t *)acc, row, count, pixel);
    else thresholds32(op, (const int32_t *)acc, row, count, pixel);
    return;
  }
  int32_t level[BW_ACC_SIZE + 8];
  for (int j = 0; j < count; j++)
    level[j] = op->narrow ? ((const int16_t *)acc)[j] : ((const int32_t *)acc)[j];
  for (int j = 0; j < 8; j++) level[count + j] = 0;
  /* Whole vectors: tables are padded, and a rest costs as much a row as a vector does. */
  if (op->epilogue == BW_EP_REQUANT) requant_rows(op, row, op->steps ? (count + 7) / 8 * 8 : count, level);
  put(op, level, count, pixel);
}

void bw_epilogue(const bw_op *op, const void *acc, int width, int64_t row, int count, int pixels,
                 uint8_t *const *to) {
#ifdef BW_AVX2
  if (op->epilogue == BW_EP_THRESHOLD && op->narrow && op->steps < MANY && op->out.kind == BW_U8) {
    if (pixels == 4) bytes_block(op, (const int16_t *)acc, width, row, count, 4, to);
    else if (pixels == 2) bytes_block(op, (const int16_t *)acc, width, row, count, 2, to);
    else bytes_block(op, (const int16_t *)acc, width, row, count, 1, to);
    return;
  }
#endif
#ifdef BW_REQUANT_BYTES
  if (op->epilogue == BW_EP_REQUANT && op->steps && op->out.kind == BW_U8) {
    for (int p = 0; p < pixels; p++) {
      const uint8_t *sums = (const uint8_t *)acc + (int64_t)p * width * (op->narrow ? 2 : 4);
      if (op->rounding == BW_HALF_EVEN) requant_bytes(op, sums, row, count, BW_HALF_EVEN, to[p]);
      else if (op->rounding == BW_HALF_UP) requant_bytes(op, sums, row, count, BW_HALF_UP, to[p]);
      else requant_bytes(op, sums, row, count, BW_FLOOR, to[p]);
    }
    return;
  }
#endif
  for (int p = 0; p < pixels; p++)
    finish_pixel(op, (const uint8_t *)acc + (int64_t)p * width * (op->narrow ? 2 : 4), row, count, to[p]);
}
