/* SPDX-License-Identifier: Apache-2.0 */
/* The product of two matrices of +1 and -1, packed: the executor's register block over all rows of both. Activations
 * are rows of 64-bit words (bit j of word k is column 64 k + j, 1 is +1), weights lie in panels as in plan.h. */
#include "xnor.h"

#define L BW_XNOR_LANES
#define TOGETHER BW_XNOR_TOGETHER /* panels of a register block */
#ifdef BW_VPOPCNT
#define BW_XNOR_TOGETHER 4
#define UNITS (1 << 30) /* a piece as long as the row */
#else
#define BW_XNOR_TOGETHER 2
#define UNITS 31 /* what counters of bytes hold */
#endif
#define MAX_PIECES 4096

typedef struct {
  const uint64_t *a;
  const uint8_t *weight;
  int64_t m, n, words, sets, chunk, chunks, next;
  int32_t *out;
  const int32_t *start;
  bw_op op;
} product;

int64_t bw_xnor_lanes(void) { return L; }
int64_t bw_xnor_most_words(void) { return UNITS > MAX_PIECES ? 1 << 24 : (int64_t)UNITS * MAX_PIECES; }

/* Rows [begin, end) of the activations by one set of panels. */
static void strip(const product *p, int64_t set, int64_t begin, int64_t end) {
  const int64_t panels = (p->n + L - 1) / L, first = set * TOGETHER;
  const uint8_t *weight = p->weight + first * p->words * 8 * L;
  int left = (int)(panels - first < TOGETHER ? panels - first : TOGETHER);
  int64_t column = first * L;
  for (int take = TOGETHER; take; take /= 2)
    for (; left >= take; left -= take, column += take * L, weight += (int64_t)take * p->words * 8 * L) {
      const int64_t width = p->n - column < take * L ? p->n - column : take * L;
      for (int64_t row = begin; row < end;) {
        const int rows = end - row >= 4 ? 4 : end - row >= 2 ? 2 : 1;
        const uint8_t *px[BW_MAX_PIXELS];
        for (int r = 0; r < rows; r++) {
          px[r] = (const uint8_t *)(p->a + (row + r) * p->words);
          BW_KEEP_ADDRESS(px[r]);
        }
        int32_t *to = p->out + row * p->n + column;
        if (width == take * L) {
          bw_xnor_block(&p->op, rows, take, px, weight, p->start, to, p->n);
        } else {
          int32_t block[BW_ACC_SIZE];
          bw_xnor_block(&p->op, rows, take, px, weight, p->start, block, take * L);
          for (int r = 0; r < rows; r++)
            memcpy(to + r * p->n, block + r * take * L, (size_t)width * sizeof(int32_t));
        }
        row += rows;
      }
    }
}

static void job(void *context, int worker) {
  product *p = context;
  (void)worker;
  for (;;) {
    const int64_t item = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED);
    if (item >= p->sets * p->chunks) return;
    const int64_t begin = item % p->chunks * p->chunk;
    strip(p, item / p->chunks, begin, begin + p->chunk < p->m ? begin + p->chunk : p->m);
  }
}

/* out (m x n) = a (m rows of `words` words) by weights in panels (n rows), of `columns` columns each. */
void bw_xnor_product(const uint64_t *a, int64_t m, const void *weight, int64_t n, int64_t words,
                     int64_t columns, int32_t *out, int threads) {
  static __thread int32_t offset[MAX_PIECES], length[MAX_PIECES], flush[MAX_PIECES];
  int32_t start[TOGETHER * L];
  for (int i = 0; i < TOGETHER * L; i++) start[i] = (int32_t)columns;
  product p = {.a = a, .weight = weight, .m = m, .n = n, .words = words, .out = out, .start = start};
  p.op.panel_bytes = words * 8 * L;
  p.op.piece_offset = offset, p.op.piece_length = length, p.op.piece_flush = flush;
  for (int64_t at = 0; at < words; at += length[p.op.pieces++]) {
    offset[p.op.pieces] = (int32_t)(8 * at);
    length[p.op.pieces] = (int32_t)(words - at < UNITS ? words - at : UNITS);
    flush[p.op.pieces] = 1;
  }
  p.sets = ((n + L - 1) / L + TOGETHER - 1) / TOGETHER;
  /* Few rows of weights: the activations are shared out too, in blocks of four. */
  const int64_t wanted = threads > 1 && p.sets < 4 * threads ? 4 * threads / p.sets + 1 : 1;
  p.chunk = ((m + wanted - 1) / wanted + 3) / 4 * 4;
  p.chunks = (m + p.chunk - 1) / p.chunk;
  bw_together(threads, job, &p);
}

/* --- packing: bit = value >= 0 ------------------------------------------------------------------ */

BW_INLINE uint64_t word_of_bytes(const int8_t *x) {
#if defined(BW_VPOPCNT) && defined(__AVX512BW__)
  return ~(uint64_t)_mm512_movepi8_mask(_mm512_loadu_si512(x));
#elif defined(BW_AVX2)
  const uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_loadu_si256((const __m256i *)x));
  const uint32_t high = (uint32_t)_mm256_movemask_epi8(_mm256_loadu_si256((const __m256i *)(x + 32)));
  return ~((uint64_t)high << 32 | low);
#else
  uint64_t word = 0;
  for (int j = 0; j < 64; j++) word |= (uint64_t)(x[j] >= 0) << j;
  return word;
#endif
}

BW_INLINE uint64_t word_of_floats(const float *x) {
  uint64_t word = 0;
#if defined(__AVX512F__) && !defined(BW_GENERIC)
  for (int j = 0; j < 64; j += 16)
    word |= (uint64_t)_mm512_cmp_ps_mask(_mm512_loadu_ps(x + j), _mm512_setzero_ps(), _CMP_GE_OQ) << j;
#elif defined(BW_AVX2)
  for (int j = 0; j < 64; j += 8)
    word |= (uint64_t)(uint32_t)_mm256_movemask_ps(
                _mm256_cmp_ps(_mm256_loadu_ps(x + j), _mm256_setzero_ps(), _CMP_GE_OQ)) << j;
#else
  for (int j = 0; j < 64; j++) word |= (uint64_t)(x[j] >= 0) << j;
#endif
  return word;
}

void bw_pack_bytes(const int8_t *x, int64_t rows, int64_t columns, uint64_t *out) {
  const int64_t words = (columns + 63) / 64, whole = columns / 64;
  for (int64_t r = 0; r < rows; r++, x += columns, out += words) {
    for (int64_t k = 0; k < whole; k++) out[k] = word_of_bytes(x + 64 * k);
    if (whole < words) out[whole] = 0;
    for (int64_t j = whole * 64; j < columns; j++) out[whole] |= (uint64_t)(x[j] >= 0) << (j % 64);
  }
}

void bw_pack_floats(const float *x, int64_t rows, int64_t columns, uint64_t *out) {
  const int64_t words = (columns + 63) / 64, whole = columns / 64;
  for (int64_t r = 0; r < rows; r++, x += columns, out += words) {
    for (int64_t k = 0; k < whole; k++) out[k] = word_of_floats(x + 64 * k);
    if (whole < words) out[whole] = 0;
    for (int64_t j = whole * 64; j < columns; j++) out[whole] |= (uint64_t)(x[j] >= 0) << (j % 64);
  }
}

/* The processor's limit: exclusive or, count and add on registers alone, `rounds` times; bits done a round. */
int64_t bw_xnor_limit(int64_t rounds, int64_t *sum) {
#if defined(BW_VPOPCNT)
  enum { CHAINS = 16 };
  __m512i acc[CHAINS], w[4], a = _mm512_set1_epi64(rounds);
#pragma GCC unroll 16
  for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_setzero_si512();
#pragma GCC unroll 16
  for (int i = 0; i < 4; i++) w[i] = _mm512_set1_epi64(*sum + i);
  for (int64_t n = 0; n < rounds; n++) {
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) __asm__ volatile("" : "+v"(w[i])); /* another value, for all the compiler knows */
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) {
      if (i % 4 == 0) __asm__ volatile("" : "+v"(a));
      acc[i] = _mm512_add_epi64(acc[i], _mm512_popcnt_epi64(_mm512_xor_si512(a, w[i % 4])));
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < CHAINS; i++) *sum += _mm512_reduce_add_epi64(acc[i]);
  return CHAINS * 512;
#elif defined(BW_AVX2)
  enum { CHAINS = 8 };
  __m256i acc[CHAINS], a = _mm256_set1_epi64x(rounds), w = _mm256_set1_epi64x(*sum);
#pragma GCC unroll 16
  for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_setzero_si256();
  for (int64_t n = 0; n < rounds; n++)
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) {
      __asm__ volatile("" : "+x"(a));
      acc[i] = _mm256_add_epi8(acc[i], count_bytes(_mm256_xor_si256(a, w)));
    }
#pragma GCC unroll 16
  for (int i = 0; i < CHAINS; i++) *sum += _mm256_extract_epi64(acc[i], 0);
  return CHAINS * 256;
#else
  enum { CHAINS = 8 };
  uint64_t acc[CHAINS] = {0}, a = (uint64_t)rounds, w = (uint64_t)*sum;
  for (int64_t n = 0; n < rounds; n++)
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) {
      __asm__ volatile("" : "+r"(a));
      acc[i] += (uint64_t)__builtin_popcountll(a ^ w);
    }
#pragma GCC unroll 16
  for (int i = 0; i < CHAINS; i++) *sum += (int64_t)acc[i];
  return CHAINS * 64;
#endif
}
