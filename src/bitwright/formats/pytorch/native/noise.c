// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10 (Salmon et al. 2011); `formats/pytorch/noise.py` says which element takes which word.
#include "noise.h"

#define ROUNDS 10
#define MULTIPLIER_0 0xD2511F53u
#define MULTIPLIER_1 0xCD9E8D57u
#define KEY_STEP_0 0x9E3779B9u
#define KEY_STEP_1 0xBB67AE85u

#ifdef __AVX2__
#include <immintrin.h>

// Words of four counters, each in the lower half of 64 bits; whatever is in the upper halves is
// ignored by the multiplier.
typedef struct {
    __m256i a, b, c, d;
} Four;

static inline __m256i all(uint32_t word)
{
    return _mm256_set1_epi64x((int64_t)word);
}

// The first two rounds, where only one word differs from counter to counter.
static inline Four begin(__m256i counter, uint32_t high, const uint32_t (*key)[2])
{
    const __m256i m0 = all(MULTIPLIER_0), m1 = all(MULTIPLIER_1);
    const uint64_t same = (uint64_t)(high ^ key[0][0]) * MULTIPLIER_0;
    __m256i p = _mm256_mul_epu32(counter, m0);
    __m256i c = _mm256_xor_si256(_mm256_srli_epi64(p, 32), all(key[0][1]));
    __m256i q = _mm256_mul_epu32(c, m1);
    Four next;
    next.a = _mm256_xor_si256(_mm256_srli_epi64(q, 32), all(key[1][0]));
    next.b = q;
    next.c = _mm256_xor_si256(p, all((uint32_t)(same >> 32) ^ key[1][1]));
    next.d = all((uint32_t)same);
    return next;
}

static inline Four stepped(Four x, const uint32_t *key)
{
    __m256i p = _mm256_mul_epu32(x.a, all(MULTIPLIER_0));
    __m256i q = _mm256_mul_epu32(x.c, all(MULTIPLIER_1));
    Four next;
    next.a = _mm256_xor_si256(_mm256_srli_epi64(q, 32), _mm256_xor_si256(x.b, all(key[0])));
    next.b = q;
    next.c = _mm256_xor_si256(_mm256_srli_epi64(p, 32), _mm256_xor_si256(x.d, all(key[1])));
    next.d = p;
    return next;
}

static inline void store(uint32_t *place, __m256i low, __m256i high)
{
    __m256 both = _mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0x88);
    _mm256_storeu_ps((float *)place, both);
}

static void words(uint32_t *draw, uint64_t first, const uint32_t (*key)[2])
{
    // Lanes in the order that makes `store` put counters side by side.
    const __m256i low = _mm256_setr_epi64x(0, 1, 4, 5), high = _mm256_setr_epi64x(2, 3, 6, 7);
    for (int i = 0; i < SIDE; i += 16) {
        __m256i place = _mm256_set1_epi64x((int64_t)((uint32_t)first + (uint32_t)i));
        __m256i next = _mm256_add_epi64(place, _mm256_set1_epi64x(8));
        uint32_t top = (uint32_t)(first >> 32);
        Four x[4] = {
            begin(_mm256_add_epi64(place, low), top, key),
            begin(_mm256_add_epi64(place, high), top, key),
            begin(_mm256_add_epi64(next, low), top, key),
            begin(_mm256_add_epi64(next, high), top, key),
        };
#pragma GCC unroll 8
        for (int round = 2; round < ROUNDS; round++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                x[j] = stepped(x[j], key[round]);
        for (int j = 0; j < 2; j++) {
            uint32_t *to = draw + i + 8 * j;
            store(to, x[2 * j].a, x[2 * j + 1].a);
            store(to + SIDE, x[2 * j].b, x[2 * j + 1].b);
            store(to + 2 * SIDE, x[2 * j].c, x[2 * j + 1].c);
            store(to + 3 * SIDE, x[2 * j].d, x[2 * j + 1].d);
        }
    }
}
#else
static void words(uint32_t *draw, uint64_t first, const uint32_t (*key)[2])
{
    uint32_t a[SIDE], b[SIDE], c[SIDE], d[SIDE];
    for (int i = 0; i < SIDE; i++) {
        a[i] = (uint32_t)first + (uint32_t)i;
        b[i] = (uint32_t)(first >> 32);
        c[i] = d[i] = 0;
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < SIDE; i++) {
            uint64_t low = (uint64_t)a[i] * MULTIPLIER_0, high = (uint64_t)c[i] * MULTIPLIER_1;
            a[i] = (uint32_t)(high >> 32) ^ b[i] ^ key[round][0];
            b[i] = (uint32_t)high;
            c[i] = (uint32_t)(low >> 32) ^ d[i] ^ key[round][1];
            d[i] = (uint32_t)low;
        }
    }
    for (int i = 0; i < SIDE; i++) {
        draw[i] = a[i];
        draw[SIDE + i] = b[i];
        draw[2 * SIDE + i] = c[i];
        draw[3 * SIDE + i] = d[i];
    }
}
#endif

const uint32_t *noise_of(Noise *noise, int64_t group)
{
    if (noise->group == group)
        return noise->draw;
    noise->group = group;
    uint32_t key[ROUNDS][2];
    for (int round = 0; round < ROUNDS; round++) {
        key[round][0] = (uint32_t)noise->seed + (uint32_t)round * KEY_STEP_0;
        key[round][1] = (uint32_t)(noise->seed >> 32) + (uint32_t)round * KEY_STEP_1;
    }
    words(noise->draw, (uint64_t)group * SIDE, (const uint32_t(*)[2])key);
    return noise->draw;
}
