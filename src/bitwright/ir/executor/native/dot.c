/* SPDX-License-Identifier: Apache-2.0 */
/* Dot products of unsigned bytes by signed bytes, and of 16-bit pairs.
 *
 * With VNNI the accumulators are int32. With AVX2 they are int16, two per row: as long as no pair saturates
 * (checked when the plan is made) sums are exact modulo 2^16, so that when the row's final interval fits int16 nothing
 * is ever widened; otherwise they are widened after each flushed piece, before they can overflow.
 */
#include <string.h>

#include "plan.h"

#define L8 BW_DOT_LANES
#define L16 BW_DOT16_LANES

BW_INLINE int32_t word(const uint8_t *p) {
  int32_t value;
  memcpy(&value, p, 4);
  return value;
}

#if defined(BW_VNNI512) || defined(BW_VNNI256)

#ifdef BW_VNNI512
typedef __m512i vec;
#define V_ZERO _mm512_setzero_si512()
#define V_LOAD(p) _mm512_loadu_si512((const void *)(p))
#define V_SPLAT(x) _mm512_set1_epi32(x)
#define V_DOT(acc, a, w) _mm512_dpbusd_epi32(acc, a, w)
#define V_ADD(a, b) _mm512_add_epi32(a, b)
#define V_STORE(p, v) _mm512_storeu_si512((void *)(p), v)
#else
typedef __m256i vec;
#define V_ZERO _mm256_setzero_si256()
#define V_LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define V_SPLAT(x) _mm256_set1_epi32(x)
#define V_DOT(acc, a, w) _mm256_dpbusd_avx_epi32(acc, a, w)
#define V_ADD(a, b) _mm256_add_epi32(a, b)
#define V_STORE(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#endif

/* One piece of a row more in the sums; the weights behind it. */
BW_INLINE const uint8_t *dot8_piece(const bw_op *op, const int P, const int V, const int i,
                                    const uint8_t *const *px, const uint8_t *weight,
                                    vec acc[][BW_MAX_PANELS]) {
  const uint8_t *at[BW_MAX_PIXELS];
  const int64_t panel = op->panel_bytes, length = op->piece_length[i];
  for (int p = 0; p < P; p++) {
    at[p] = px[p] + op->piece_offset[i];
    BW_KEEP_ADDRESS(at[p]);
  }
  for (int64_t k = 0; k < length; k++, weight += 4 * L8) {
    vec w[BW_MAX_PANELS];
    for (int v = 0; v < V; v++) {
      w[v] = V_LOAD(weight + v * panel);
      BW_KEEP(w[v]);
    }
    for (int p = 0; p < P; p++) {
      const vec a = V_SPLAT(word(at[p] + 4 * k));
      for (int v = 0; v < V; v++) acc[p][v] = V_DOT(acc[p][v], a, w[v]);
    }
  }
  return weight;
}

BW_INLINE void dot8(const bw_op *op, const int P, const int V, const uint8_t *const *px,
                    const uint8_t *weight, int64_t row, int32_t *out) {
  vec acc[BW_MAX_PIXELS][BW_MAX_PANELS];
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++) acc[p][v] = V_ZERO;
  const int pieces = op->pieces;
  if (pieces == 1) /* apart, as in xnor.h */
    dot8_piece(op, P, V, 0, px, weight, acc);
  else
    for (int i = 0; i < pieces; i++) weight = dot8_piece(op, P, V, i, px, weight, acc);
  const int32_t *start = (const int32_t *)op->start + row;
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++)
      V_STORE(out + (p * V + v) * L8, V_ADD(acc[p][v], V_LOAD(start + v * L8)));
}

#elif defined(BW_AVX2)

/* Two int16 lanes per row -> one int32 per row. */
BW_INLINE __m256i widened(__m256i acc) { return _mm256_madd_epi16(acc, _mm256_set1_epi16(1)); }

BW_INLINE void dot8_flush(const int P, const int V, __m256i acc[][BW_MAX_PANELS], int32_t *out) {
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++) {
      __m256i *sum = (__m256i *)(out + (p * V + v) * L8);
      _mm256_storeu_si256(sum, _mm256_add_epi32(_mm256_loadu_si256(sum), widened(acc[p][v])));
      acc[p][v] = _mm256_setzero_si256();
    }
}

/* Exact modulo 2^16: the low half of the sum of both lanes, sign extended; rows in order. */
BW_INLINE void dot8_narrow(const int P, const int V, __m256i acc[][BW_MAX_PANELS],
                           const int16_t *start, int16_t *out) {
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++) {
      const __m256i sum = _mm256_srai_epi32(_mm256_slli_epi32(widened(acc[p][v]), 16), 16);
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(sum, sum), 0x08);
      const __m128i bias = _mm_loadu_si128((const __m128i *)(start + v * L8));
      _mm_storeu_si128((__m128i *)(out + (p * V + v) * L8),
                       _mm_add_epi16(_mm256_castsi256_si128(packed), bias));
    }
}

BW_INLINE void dot8(const bw_op *op, const int P, const int V, const uint8_t *const *px,
                    const uint8_t *weight, int64_t row, int32_t *out) {
  __m256i acc[BW_MAX_PIXELS][BW_MAX_PANELS];
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++) acc[p][v] = _mm256_setzero_si256();
  const int64_t panel = op->panel_bytes;
  if (!op->wraps)
    for (int p = 0; p < P; p++)
      memcpy(out + p * V * L8, (const int32_t *)op->start + row, (size_t)V * L8 * 4);
  for (int i = 0; i < op->pieces; i++) {
    const int64_t offset = op->piece_offset[i];
    const int length = op->piece_length[i];
    for (int k = 0; k < length; k++, weight += 4 * L8) {
      __m256i w[BW_MAX_PANELS];
      for (int v = 0; v < V; v++) {
        w[v] = _mm256_loadu_si256((const __m256i *)(weight + v * panel));
        BW_KEEP(w[v]);
      }
      for (int p = 0; p < P; p++) {
        const __m256i a = _mm256_set1_epi32(word(px[p] + offset + 4 * k));
        for (int v = 0; v < V; v++)
          acc[p][v] = _mm256_add_epi16(acc[p][v], _mm256_maddubs_epi16(a, w[v]));
      }
    }
    if (op->piece_flush[i]) dot8_flush(P, V, acc, out);
  }
  if (op->wraps) dot8_narrow(P, V, acc, (const int16_t *)op->start + row, (int16_t *)out);
}

#else

BW_INLINE void dot8(const bw_op *op, const int P, const int V, const uint8_t *const *px,
                    const uint8_t *weight, int64_t row, int32_t *out) {
  for (int p = 0; p < P; p++)
    memcpy(out + p * V * L8, (const int32_t *)op->start + row, (size_t)V * L8 * 4);
  for (int i = 0; i < op->pieces; i++)
    for (int k = 0; k < op->piece_length[i]; k++, weight += 4 * L8)
      for (int p = 0; p < P; p++) {
        const uint8_t *a = px[p] + op->piece_offset[i] + 4 * k;
        for (int v = 0; v < V; v++) {
          const int8_t *w = (const int8_t *)weight + v * op->panel_bytes;
          int32_t *sum = out + (p * V + v) * L8;
          for (int l = 0; l < L8; l++)
            sum[l] += a[0] * w[4 * l] + a[1] * w[4 * l + 1] + a[2] * w[4 * l + 2] + a[3] * w[4 * l + 3];
        }
      }
}

#endif

#ifdef BW_AVX2

BW_INLINE void dot16(const bw_op *op, const int P, const int V, const uint8_t *const *px,
                     const uint8_t *weight, int64_t row, int32_t *out) {
  __m256i acc[BW_MAX_PIXELS][BW_MAX_PANELS];
  const int32_t *start = (const int32_t *)op->start + row;
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++) acc[p][v] = _mm256_loadu_si256((const __m256i *)(start + v * L16));
  for (int i = 0; i < op->pieces; i++) {
    const int64_t offset = op->piece_offset[i];
    const int length = op->piece_length[i];
    for (int k = 0; k < length; k++, weight += 4 * L16) {
      __m256i w[BW_MAX_PANELS];
      for (int v = 0; v < V; v++) {
        w[v] = _mm256_loadu_si256((const __m256i *)(weight + v * op->panel_bytes));
        BW_KEEP(w[v]);
      }
      for (int p = 0; p < P; p++) {
        const __m256i a = _mm256_set1_epi32(word(px[p] + offset + 4 * k));
        for (int v = 0; v < V; v++)
          acc[p][v] = _mm256_add_epi32(acc[p][v], _mm256_madd_epi16(a, w[v]));
      }
    }
  }
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++)
      _mm256_storeu_si256((__m256i *)(out + (p * V + v) * L16), acc[p][v]);
}

#else

BW_INLINE void dot16(const bw_op *op, const int P, const int V, const uint8_t *const *px,
                     const uint8_t *weight, int64_t row, int32_t *out) {
  for (int p = 0; p < P; p++)
    memcpy(out + p * V * L16, (const int32_t *)op->start + row, (size_t)V * L16 * 4);
  for (int i = 0; i < op->pieces; i++)
    for (int k = 0; k < op->piece_length[i]; k++, weight += 4 * L16)
      for (int p = 0; p < P; p++) {
        const int16_t *a = (const int16_t *)(px[p] + op->piece_offset[i]) + 2 * k;
        for (int v = 0; v < V; v++) {
          const int16_t *w = (const int16_t *)(weight + v * op->panel_bytes);
          int32_t *sum = out + (p * V + v) * L16;
          for (int l = 0; l < L16; l++) sum[l] += a[0] * w[2 * l] + a[1] * w[2 * l + 1];
        }
      }
}

#endif

#define BLOCK(kernel, P, V) \
  case (P) * 8 + (V): kernel(op, P, V, px, weight, row, (int32_t *)acc); break;
#ifdef BW_VNNI512 /* 32 registers hold 16 accumulators and what feeds them */
#define WIDE_BLOCK(kernel) BLOCK(kernel, 4, 4)
#else
#define WIDE_BLOCK(kernel)
#endif
#define DISPATCH(kernel)                                                  \
  switch (pixels * 8 + panels) {                                          \
    WIDE_BLOCK(kernel) BLOCK(kernel, 2, 4) BLOCK(kernel, 1, 4)            \
    BLOCK(kernel, 4, 2) BLOCK(kernel, 2, 2) BLOCK(kernel, 1, 2)           \
    BLOCK(kernel, 4, 1) BLOCK(kernel, 2, 1) BLOCK(kernel, 1, 1)           \
  }

void bw_micro_dot8(const bw_op *op, int pixels, int panels, const uint8_t *const *px,
                   const uint8_t *weight, int64_t row, void *acc) {
  DISPATCH(dot8)
}

void bw_micro_dot16(const bw_op *op, int pixels, int panels, const uint8_t *const *px,
                    const uint8_t *weight, int64_t row, void *acc) {
  DISPATCH(dot16)
}
