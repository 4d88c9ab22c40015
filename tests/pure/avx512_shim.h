/* SPDX-License-Identifier: Apache-2.0 */
/* The AVX-512 and AVX-VNNI operations that the executor uses, in plain C as Intel's manual defines them, so that
 * those paths run and are tested on processors without them. Included before everything else (cc -include). */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef struct { uint8_t b[64]; } shim512;
#define __m512i shim512
#define BW_KEEP(v) (void)(v)
#define SHIM static inline __attribute__((always_inline))

SHIM shim512 shim_load(const void *p) { shim512 v; memcpy(v.b, p, 64); return v; }
SHIM void shim_store(void *p, shim512 v) { memcpy(p, v.b, 64); }
SHIM shim512 shim_zero(void) { shim512 v; memset(v.b, 0, 64); return v; }
SHIM shim512 shim_set32(int32_t x) { shim512 v; for (int i = 0; i < 16; i++) memcpy(v.b + 4 * i, &x, 4); return v; }
SHIM shim512 shim_set64(int64_t x) { shim512 v; for (int i = 0; i < 8; i++) memcpy(v.b + 8 * i, &x, 8); return v; }
SHIM shim512 shim_xor(shim512 a, shim512 b) { for (int i = 0; i < 64; i++) a.b[i] ^= b.b[i]; return a; }

SHIM shim512 shim_add32(shim512 a, shim512 b) {
  for (int i = 0; i < 16; i++) {
    uint32_t x, y;
    memcpy(&x, a.b + 4 * i, 4), memcpy(&y, b.b + 4 * i, 4), x += y, memcpy(a.b + 4 * i, &x, 4);
  }
  return a;
}

SHIM shim512 shim_add64(shim512 a, shim512 b) {
  for (int i = 0; i < 8; i++) {
    uint64_t x, y;
    memcpy(&x, a.b + 8 * i, 8), memcpy(&y, b.b + 8 * i, 8), x += y, memcpy(a.b + 8 * i, &x, 8);
  }
  return a;
}

SHIM shim512 shim_popcnt64(shim512 a) {
  for (int i = 0; i < 8; i++) {
    uint64_t x;
    memcpy(&x, a.b + 8 * i, 8), x = (uint64_t)__builtin_popcountll(x), memcpy(a.b + 8 * i, &x, 8);
  }
  return a;
}

SHIM __m256i shim_narrow64(shim512 a) { /* low halves of 8 quadwords */
  int32_t low[8];
  for (int i = 0; i < 8; i++) memcpy(low + i, a.b + 8 * i, 4);
  return _mm256_loadu_si256((const __m256i *)low);
}

SHIM shim512 shim_sub32(shim512 a, shim512 b) {
  for (int i = 0; i < 16; i++) {
    uint32_t x, y;
    memcpy(&x, a.b + 4 * i, 4), memcpy(&y, b.b + 4 * i, 4), x -= y, memcpy(a.b + 4 * i, &x, 4);
  }
  return a;
}

SHIM shim512 shim_shift32(shim512 a, int count) {
  for (int i = 0; i < 16; i++) {
    uint32_t x;
    memcpy(&x, a.b + 4 * i, 4), x <<= count, memcpy(a.b + 4 * i, &x, 4);
  }
  return a;
}

SHIM shim512 shim_pick32(shim512 a, shim512 index, shim512 b) { /* bit 4 of an index: from b */
  shim512 out;
  for (int i = 0; i < 16; i++) {
    const int at = index.b[4 * i] & 31;
    memcpy(out.b + 4 * i, (at < 16 ? a.b : b.b) + 4 * (at & 15), 4);
  }
  return out;
}

/* acc[i] += sum of 4 unsigned bytes of a times 4 signed bytes of b, no saturation. */
SHIM void shim_dot_lanes(uint8_t *acc, const uint8_t *a, const uint8_t *b, int lanes) {
  for (int i = 0; i < lanes; i++) {
    int32_t sum;
    memcpy(&sum, acc + 4 * i, 4);
    for (int j = 0; j < 4; j++) sum += (int32_t)a[4 * i + j] * (int8_t)b[4 * i + j];
    memcpy(acc + 4 * i, &sum, 4);
  }
}

SHIM shim512 shim_dot512(shim512 acc, shim512 a, shim512 b) {
  shim_dot_lanes(acc.b, a.b, b.b, 16);
  return acc;
}

SHIM __m256i shim_dot256(__m256i acc, __m256i a, __m256i b) {
  shim_dot_lanes((uint8_t *)&acc, (const uint8_t *)&a, (const uint8_t *)&b, 8);
  return acc;
}

#define _mm512_setzero_si512 shim_zero
#define _mm512_loadu_si512 shim_load
#define _mm512_storeu_si512 shim_store
#define _mm512_set1_epi32 shim_set32
#define _mm512_set1_epi64 shim_set64
#define _mm512_xor_si512 shim_xor
#define _mm512_add_epi32 shim_add32
#define _mm512_add_epi64 shim_add64
#define _mm512_sub_epi32 shim_sub32
#define _mm512_slli_epi32 shim_shift32
#define _mm512_permutex2var_epi32 shim_pick32
#define _mm512_popcnt_epi64 shim_popcnt64
#define _mm512_cvtepi64_epi32 shim_narrow64
#define _mm512_dpbusd_epi32 shim_dot512
#define _mm256_dpbusd_avx_epi32 shim_dot256

#ifdef SHIM_AVX512
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VNNI__ 1
#define __AVX512VPOPCNTDQ__ 1
#else
#define __AVXVNNI__ 1
#endif
