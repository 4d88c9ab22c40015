/* SPDX-License-Identifier: Apache-2.0 */
/* The register block of one-bit products: `pixels` vectors of activations by `panels` panels of rows.
 * One lane of a vector is one row; a unit is 64 columns. Unused bits are 0 on both sides. A row is
 * start - 2 * popcount(activations xor weights), start = columns + bias; results of the next pixel lie `pitch` behind.
 */
#ifndef BW_XNOR_H
#define BW_XNOR_H
#include <string.h>

#include "plan.h"

#define L BW_XNOR_LANES

BW_INLINE uint64_t word64(const uint8_t *p) {
  uint64_t value;
  memcpy(&value, p, 8);
  return value;
}

#if defined(BW_VPOPCNT)

/* One piece of a row more in the counters; the weights behind it. */
BW_INLINE const uint8_t *xnor_piece(const bw_op *op, const int P, const int V, const int i,
                                    const uint8_t *const *px, const uint8_t *weight,
                                    __m512i acc[][BW_MAX_PANELS]) {
  const uint8_t *at[BW_MAX_PIXELS];
  const int64_t panel = op->panel_bytes, end = op->piece_length[i];
  for (int p = 0; p < P; p++) {
    at[p] = px[p] + op->piece_offset[i];
    BW_KEEP_ADDRESS(at[p]);
  }
  for (int64_t k = 0; k < end; k++, weight += 8 * L) {
    __m512i w[BW_MAX_PANELS];
    for (int v = 0; v < V; v++) {
      w[v] = _mm512_loadu_si512(weight + v * panel);
      BW_KEEP(w[v]);
    }
    for (int p = 0; p < P; p++) {
      const __m512i a = _mm512_set1_epi64((int64_t)word64(at[p] + 8 * k));
      for (int v = 0; v < V; v++)
        acc[p][v] = _mm512_add_epi64(acc[p][v], _mm512_popcnt_epi64(_mm512_xor_si512(a, w[v])));
    }
  }
  return weight;
}

BW_INLINE void xnor(const bw_op *op, const int P, const int V, const uint8_t *const *px,
                    const uint8_t *weight, const int32_t *start, int32_t *out,
                    int64_t pitch) {
  __m512i acc[BW_MAX_PIXELS][BW_MAX_PANELS];
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++) acc[p][v] = _mm512_setzero_si512();
  const int pieces = op->pieces;
  if (pieces == 1) /* apart: a loop around the loop takes a tenth of the time of short rows */
    xnor_piece(op, P, V, 0, px, weight, acc);
  else
    for (int i = 0; i < pieces; i++) weight = xnor_piece(op, P, V, i, px, weight, acc);
  /* The low halves of two panels' counters are one vector of 16 rows. */
  static const int32_t low[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  const __m512i even = _mm512_loadu_si512(low);
  for (int p = 0; p < P; p++) {
    for (int v = 0; v + 1 < V; v += 2) {
      const __m512i count = _mm512_permutex2var_epi32(acc[p][v], even, acc[p][v + 1]);
      const __m512i sum =
          _mm512_sub_epi32(_mm512_loadu_si512(start + v * L), _mm512_slli_epi32(count, 1));
      _mm512_storeu_si512(out + p * pitch + v * L, sum);
    }
    if (V == 1) {
      const __m256i count = _mm512_cvtepi64_epi32(acc[p][0]);
      const __m256i sum = _mm256_sub_epi32(_mm256_loadu_si256((const __m256i *)start),
                                           _mm256_slli_epi32(count, 1));
      _mm256_storeu_si256((__m256i *)(out + p * pitch), sum);
    }
  }
}

#elif defined(BW_AVX2)

/* Bits set in each byte, through a table of nibbles. */
BW_INLINE __m256i count_bytes(__m256i x) {
  const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2,
                                         1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(x, mask));
  const __m256i high =
      _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi64(x, 4), mask));
  return _mm256_add_epi8(low, high);
}

/* Byte counters hold 31 units; then they are summed per row into `total`. */
BW_INLINE void xnor_flush(const int P, const int V, __m256i acc[][BW_MAX_PANELS], int64_t *total) {
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++) {
      __m256i *sum = (__m256i *)(total + (p * V + v) * L);
      const __m256i rows = _mm256_sad_epu8(acc[p][v], _mm256_setzero_si256());
      _mm256_storeu_si256(sum, _mm256_add_epi64(_mm256_loadu_si256(sum), rows));
      acc[p][v] = _mm256_setzero_si256();
    }
}

BW_INLINE void xnor(const bw_op *op, const int P, const int V, const uint8_t *const *px,
                    const uint8_t *weight, const int32_t *start, int32_t *out,
                    int64_t pitch) {
  __m256i acc[BW_MAX_PIXELS][BW_MAX_PANELS];
  int64_t total[BW_MAX_PIXELS * BW_MAX_PANELS * L];
  memset(total, 0, (size_t)(P * V * L) * 8);
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++) acc[p][v] = _mm256_setzero_si256();
  for (int i = 0; i < op->pieces; i++) {
    const int64_t offset = op->piece_offset[i];
    const int length = op->piece_length[i];
    for (int k = 0; k < length; k++, weight += 8 * L) {
      for (int v = 0; v < V; v++) {
        const __m256i w = _mm256_loadu_si256((const __m256i *)(weight + v * op->panel_bytes));
        for (int p = 0; p < P; p++) {
          const __m256i a = _mm256_set1_epi64x((int64_t)word64(px[p] + offset + 8 * k));
          acc[p][v] = _mm256_add_epi8(acc[p][v], count_bytes(_mm256_xor_si256(a, w)));
        }
      }
    }
    if (op->piece_flush[i]) xnor_flush(P, V, acc, total);
  }
  for (int p = 0; p < P; p++)
    for (int j = 0; j < V * L; j++) out[p * pitch + j] = start[j] - 2 * (int32_t)total[p * V * L + j];
}

#else

BW_INLINE void xnor(const bw_op *op, const int P, const int V, const uint8_t *const *px,
                    const uint8_t *weight, const int32_t *start, int32_t *out,
                    int64_t pitch) {
  int32_t count[BW_MAX_PIXELS * BW_MAX_PANELS * L] = {0};
  for (int i = 0; i < op->pieces; i++)
    for (int k = 0; k < op->piece_length[i]; k++, weight += 8 * L)
      for (int p = 0; p < P; p++) {
        const uint64_t a = word64(px[p] + op->piece_offset[i] + 8 * k);
        for (int v = 0; v < V; v++)
          for (int l = 0; l < L; l++)
            count[(p * V + v) * L + l] +=
                __builtin_popcountll(a ^ word64(weight + v * op->panel_bytes + 8 * l));
      }
  for (int p = 0; p < P; p++)
    for (int j = 0; j < V * L; j++) out[p * pitch + j] = start[j] - 2 * count[p * V * L + j];
}

#endif

#undef L

#define BW_XNOR_BLOCK(P, V) \
  case (P) * 8 + (V): xnor(op, P, V, px, weight, start, out, pitch); break;

BW_INLINE void bw_xnor_block(const bw_op *op, int pixels, int panels, const uint8_t *const *px,
                             const uint8_t *weight, const int32_t *start, int32_t *out,
                             int64_t pitch) {
  switch (pixels * 8 + panels) {
    BW_XNOR_BLOCK(4, 4) BW_XNOR_BLOCK(2, 4) BW_XNOR_BLOCK(1, 4)
    BW_XNOR_BLOCK(4, 2) BW_XNOR_BLOCK(2, 2) BW_XNOR_BLOCK(1, 2)
    BW_XNOR_BLOCK(4, 1) BW_XNOR_BLOCK(2, 1) BW_XNOR_BLOCK(1, 1)
  }
}
#endif
