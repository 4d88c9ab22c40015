/* SPDX-License-Identifier: Apache-2.0 */
/* The same product of +1 and -1 as bytes, on tiles of 16 x 16 sums: a unit that multiplies 8-bit integers so fast
 * that it beats counting bits, where a processor has it. Missing columns and rows are 0. */
#include "plan.h"

#if defined(__AMX_INT8__) && defined(__linux__) && !defined(BW_GENERIC)
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE 1024 /* bytes: 16 rows of 64 */
enum { ASK = 0x1023, TILE_DATA = 18 };

typedef struct {
  const int8_t *a, *weight;
  int64_t m, n, depth, pairs, chunk, chunks, next; /* depth: tiles along the columns */
  int32_t *out;
} product;

/* The kernel must be asked once before tiles may be used; 0 if it says no. */
int64_t bw_amx_ready(void) {
  static int asked, granted;
  if (!asked) {
    granted = syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
    asked = 1;
  }
  return granted;
}

static void configure(void) {
  struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } tiles = {.palette = 1};
  for (int i = 0; i < 8; i++) tiles.bytes[i] = 64, tiles.rows[i] = 16;
  _tile_loadconfig(&tiles);
}

/* 32 rows of activations by 32 rows of weights. A tile of either has its 1024 bytes in one piece. */
static void block(const product *p, int64_t row, int64_t pair, int32_t *to, int64_t pitch) {
  const int8_t *a0 = p->a + row / 16 * p->depth * TILE, *a1 = a0 + p->depth * TILE;
  const int8_t *b = p->weight + pair * 2 * p->depth * TILE;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < p->depth; k++) {
    _tile_loadd(4, a0 + k * TILE, 64);
    _tile_loadd(6, b + 2 * k * TILE, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b + (2 * k + 1) * TILE, 64);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, a1 + k * TILE, 64);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_stored(0, to, pitch * 4);
  _tile_stored(1, to + 16, pitch * 4);
  _tile_stored(2, to + 16 * pitch, pitch * 4);
  _tile_stored(3, to + 16 * pitch + 16, pitch * 4);
}

static void job(void *context, int worker) {
  product *p = context;
  (void)worker;
  configure();
  for (;;) {
    const int64_t item = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED);
    if (item >= p->pairs * p->chunks) break;
    const int64_t pair = item % p->pairs, begin = item / p->pairs * p->chunk;
    const int64_t end = begin + p->chunk < p->m ? begin + p->chunk : p->m;
    for (int64_t row = begin; row < end; row += 32) {
      int32_t *to = p->out + row * p->n + pair * 32;
      const int64_t rows = p->m - row < 32 ? p->m - row : 32;
      const int64_t width = p->n - pair * 32 < 32 ? p->n - pair * 32 : 32;
      if (rows == 32 && width == 32) {
        block(p, row, pair, to, p->n);
      } else {
        int32_t sums[32 * 32];
        block(p, row, pair, sums, 32);
        for (int64_t r = 0; r < rows; r++) memcpy(to + r * p->n, sums + r * 32, (size_t)width * 4);
      }
    }
  }
  _tile_release();
}

/* out (m x n); a and weight as `signs` and Python's `amx_weights` lay them, m and n rounded up to 32. */
void bw_amx_product(const int8_t *a, int64_t m, const int8_t *weight, int64_t n, int64_t depth,
                    int32_t *out, int threads) {
  product p = {.a = a, .weight = weight, .m = m, .n = n, .depth = depth, .out = out};
  p.pairs = (n + 31) / 32;
  /* As many rows of activations as stay in the second-level cache. */
  const int64_t rows = (1 << 19) / (depth * 64) / 32 * 32;
  p.chunk = rows < 32 ? 32 : rows;
  p.chunks = (m + p.chunk - 1) / p.chunk;
  bw_together(threads, job, &p);
}

/* Levels (m x columns, only their signs count) as tiles [row / 16][column / 64][16][64]; the rest is 0. */
static void signs(const int8_t *bytes, const float *floats, int64_t m, int64_t columns, int8_t *out) {
  const int64_t depth = (columns + 63) / 64, padded = (m + 31) / 32 * 32;
  for (int64_t row = 0; row < padded; row++)
    for (int64_t k = 0; k < depth; k++) {
      int8_t *to = out + ((row / 16 * depth + k) * 16 + row % 16) * 64;
      const int64_t at = row * columns + 64 * k;
      const int count = row >= m ? 0 : columns - 64 * k < 64 ? (int)(columns - 64 * k) : 64;
      if (count == 64 && bytes) {
        const __mmask64 minus = _mm512_movepi8_mask(_mm512_loadu_si512(bytes + at));
        _mm512_storeu_si512(to, _mm512_mask_blend_epi8(minus, _mm512_set1_epi8(1), _mm512_set1_epi8(-1)));
      } else if (count == 64) {
        __mmask64 plus = 0;
        for (int j = 0; j < 64; j += 16)
          plus |= (uint64_t)_mm512_cmp_ps_mask(_mm512_loadu_ps(floats + at + j), _mm512_setzero_ps(),
                                               _CMP_GE_OQ) << j;
        _mm512_storeu_si512(to, _mm512_mask_blend_epi8(plus, _mm512_set1_epi8(-1), _mm512_set1_epi8(1)));
      } else {
        for (int j = 0; j < 64; j++)
          to[j] = j >= count ? 0 : (bytes ? bytes[at + j] >= 0 : floats[at + j] >= 0) ? 1 : -1;
      }
    }
}
#else
int64_t bw_amx_ready(void) { return 0; }
void bw_amx_product(const int8_t *a, int64_t m, const int8_t *weight, int64_t n, int64_t depth,
                    int32_t *out, int threads) {
  (void)a, (void)m, (void)weight, (void)n, (void)depth, (void)out, (void)threads;
}
static void signs(const int8_t *bytes, const float *floats, int64_t m, int64_t columns, int8_t *out) {
  (void)bytes, (void)floats, (void)m, (void)columns, (void)out;
}
#endif

void bw_amx_bytes(const int8_t *x, int64_t m, int64_t columns, int8_t *out) {
  signs(x, 0, m, columns, out);
}
void bw_amx_floats(const float *x, int64_t m, int64_t columns, int8_t *out) {
  signs(0, x, m, columns, out);
}
