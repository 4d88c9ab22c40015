/* SPDX-License-Identifier: Apache-2.0 */
/* One-bit kernels on buffers of exactly the right size; built with address checks. */
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
void bw_vector_mult_xnor(const uint8_t *, const uint8_t *, float *, int32_t, int64_t);
void bw_vector_mult_compressed(const uint32_t *, const uint32_t *, int32_t *, int32_t, int32_t, int64_t);
void bw_vector_mult_popcount(const uint32_t *, const uint32_t *, int32_t *, int32_t, int32_t, int64_t);
void bw_pack_bytes(const int8_t *, int64_t, int64_t, uint64_t *);
void bw_pack_floats(const float *, int64_t, int64_t, uint64_t *);
void bw_xnor_product(const uint64_t *, int64_t, const void *, int64_t, int64_t, int64_t, int32_t *, int);
int64_t bw_xnor_lanes(void);
int main(void) {
  for (int n = 1; n <= 200; n++) {
    enum { ROWS = 5 };
    const int words = (n + 31) / 32, wide = (n + 63) / 64, lanes = (int)bw_xnor_lanes();
    uint8_t *w = calloc(ROWS * n, 1), *x = calloc(n, 1);
    uint32_t *pw = calloc(ROWS * words, 4), *px = calloc(words, 4);
    float *f = calloc(ROWS * n, 4), *fo = calloc(ROWS, 4);
    int32_t *o = calloc(ROWS, 4), *p = calloc(ROWS, 4), *m = calloc(ROWS * ROWS, 4);
    uint64_t *a = calloc(ROWS * wide, 8), *panel = calloc((size_t)lanes * wide * ((ROWS + lanes - 1) / lanes), 8);
    bw_vector_mult_xnor(w, x, fo, n, ROWS);
    bw_vector_mult_compressed(pw, px, o, words, n, ROWS);
    bw_vector_mult_popcount(pw, px, p, words, n, ROWS);
    bw_pack_bytes((int8_t *)w, ROWS, n, a);
    bw_pack_floats(f, ROWS, n, a);
    for (int i = 0; i < ROWS * wide; i++) a[i] = 0;
    bw_xnor_product(a, ROWS, panel, ROWS, wide, n, m, 1);
    for (int i = 0; i < ROWS; i++)
      if (fo[i] != n || o[i] != n || p[i] != n || m[i] != n) return 1;
    free(w), free(x), free(pw), free(px), free(f), free(fo), free(o), free(p), free(m), free(a), free(panel);
  }
  puts("in bounds");
  return 0;
}
