// SPDX-License-Identifier: Apache-2.0
// Random words of the elements of a tensor; `formats/pytorch/noise.py` says which element takes which.
#ifndef BW_NOISE_H
#define BW_NOISE_H
#include <stdint.h>

enum { GROUP = 256, SIDE = 64 };

// The draws of the group of elements that was asked for last.
typedef struct {
    uint64_t seed;
    int64_t group;
    uint32_t draw[GROUP];
} Noise;

// The words of elements 256 * group on.
const uint32_t *noise_of(Noise *noise, int64_t group);
#endif
