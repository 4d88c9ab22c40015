/* SPDX-License-Identifier: Apache-2.0 */
/* Few-bit products by table look-up (AVX2): the fastest kernel where there is no VNNI and no vector popcount.
 *
 * A nibble holds the weights of one row for a group of columns: 4 one-bit or 2 two-bit weights. The activations of
 * the group, as one number, pick 16 bytes of a small table: the group's partial sum for each of the 16 weight nibbles,
 * made non-negative. One byte shuffle then gives 32 rows times 2 or 4 columns of products and their sum.
 * Byte sums are widened before they can exceed 255; 16-bit sums are exact modulo 2^16, and start from minus the bias
 * of all look-ups, so that they end at the row's exact int16 value.
 *
 * The idea of shuffles as multipliers for few-bit weights is old: "Quicker ADC" (Andre et al. 2019), Bolt
 * (Blalock and Guttag 2017), T-MAC (Wei et al. 2024). Here the tables depend on activations only through an index.
 */
#include <string.h>

#include "plan.h"

#define L BW_LUT_LANES

#ifdef BW_AVX2

/* Rows 2i of a panel are its even bytes, and were laid there by the plan as rows i; odd bytes are rows 16 + i. */
BW_INLINE void lut_flush(const int P, const int V, __m256i acc[][BW_MAX_PANELS], uint16_t *out) {
  const __m256i low = _mm256_set1_epi16(255);
  for (int p = 0; p < P; p++)
    for (int v = 0; v < V; v++) {
      __m256i *sum = (__m256i *)(out + (p * V + v) * L);
      const __m256i even = _mm256_and_si256(acc[p][v], low);
      const __m256i odd = _mm256_srli_epi16(acc[p][v], 8);
      _mm256_storeu_si256(sum, _mm256_add_epi16(_mm256_loadu_si256(sum), even));
      _mm256_storeu_si256(sum + 1, _mm256_add_epi16(_mm256_loadu_si256(sum + 1), odd));
      acc[p][v] = _mm256_setzero_si256();
    }
}

BW_INLINE void lut(const bw_op *op, const int P, const int V, const uint8_t *const *px,
                   const uint8_t *weight, int64_t row, uint16_t *out) {
  __m256i acc[BW_MAX_PIXELS][BW_MAX_PANELS];
  const uint8_t *table = (const uint8_t *)op->table;
  for (int p = 0; p < P; p++) {
    memcpy(out + p * V * L, (const uint16_t *)op->start + row, (size_t)V * L * 2);
    for (int v = 0; v < V; v++) acc[p][v] = _mm256_setzero_si256();
  }
  const int64_t panel = op->panel_bytes;
  for (int i = 0; i < op->pieces; i++) {
    const uint16_t *index[BW_MAX_PIXELS];
    for (int p = 0; p < P; p++) index[p] = (const uint16_t *)(px[p] + op->piece_offset[i]);
    const int length = op->piece_length[i];
    for (int k = 0; k < length; k++, weight += L) {
      __m256i w[BW_MAX_PANELS];
      for (int v = 0; v < V; v++) {
        w[v] = _mm256_loadu_si256((const __m256i *)(weight + v * panel));
        BW_KEEP(w[v]);
      }
      for (int p = 0; p < P; p++) {
        const __m256i t = _mm256_broadcastsi128_si256(
            _mm_load_si128((const __m128i *)(table + index[p][k])));
        for (int v = 0; v < V; v++)
          acc[p][v] = _mm256_add_epi8(acc[p][v], _mm256_shuffle_epi8(t, w[v]));
      }
    }
    if (op->piece_flush[i]) lut_flush(P, V, acc, out);
  }
}

#else

BW_INLINE void lut(const bw_op *op, const int P, const int V, const uint8_t *const *px,
                   const uint8_t *weight, int64_t row, uint16_t *out) {
  for (int p = 0; p < P; p++)
    memcpy(out + p * V * L, (const uint16_t *)op->start + row, (size_t)V * L * 2);
  for (int i = 0; i < op->pieces; i++)
    for (int k = 0; k < op->piece_length[i]; k++, weight += L)
      for (int p = 0; p < P; p++) {
        const uint16_t index = ((const uint16_t *)(px[p] + op->piece_offset[i]))[k];
        const uint8_t *table = (const uint8_t *)op->table + index;
        for (int v = 0; v < V; v++)
          for (int l = 0; l < L; l++) {
            const int lane = (l >> 1) + (l & 1) * (L / 2);
            out[(p * V + v) * L + lane] += table[weight[v * op->panel_bytes + l]];
          }
      }
}

#endif

#define BLOCK(P, V) \
  case (P) * 8 + (V): lut(op, P, V, px, weight, row, (uint16_t *)acc); break;

void bw_micro_lut(const bw_op *op, int pixels, int panels, const uint8_t *const *px,
                  const uint8_t *weight, int64_t row, void *acc) {
  switch (pixels * 8 + panels) {
    BLOCK(4, 2) BLOCK(2, 2) BLOCK(1, 2)
    BLOCK(4, 1) BLOCK(2, 1) BLOCK(1, 1)
  }
}
