// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10 (Salmon et al. 2011); `quant/noise.py` says which element takes which word.
#include "quantize.h"

const uint32_t *noise_of(Noise *noise, int64_t group)
{
    if (noise->group == group)
        return noise->draw;
    noise->group = group;
    uint32_t a[SIDE], b[SIDE], c[SIDE], d[SIDE];
    for (int i = 0; i < SIDE; i++) {
        uint64_t counter = (uint64_t)group * SIDE + (uint64_t)i;
        a[i] = (uint32_t)counter;
        b[i] = (uint32_t)(counter >> 32);
        c[i] = d[i] = 0;
    }
    uint32_t key0 = (uint32_t)noise->seed, key1 = (uint32_t)(noise->seed >> 32);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < SIDE; i++) {
            uint64_t low = (uint64_t)a[i] * 0xD2511F53u, high = (uint64_t)c[i] * 0xCD9E8D57u;
            a[i] = (uint32_t)(high >> 32) ^ b[i] ^ key0;
            b[i] = (uint32_t)high;
            c[i] = (uint32_t)(low >> 32) ^ d[i] ^ key1;
            d[i] = (uint32_t)low;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    for (int i = 0; i < SIDE; i++) {
        noise->draw[i] = a[i];
        noise->draw[SIDE + i] = b[i];
        noise->draw[2 * SIDE + i] = c[i];
        noise->draw[3 * SIDE + i] = d[i];
    }
    return noise->draw;
}
