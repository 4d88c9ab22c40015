/* SPDX-License-Identifier: Apache-2.0 */
/* Several frames at a time: matrix by matrix, in register blocks. ROWS: of weights; FRAMES: of this build's block.
 * Weights of `product` lie [block of 16 rows][word][row], so that a vector is one word of 16 rows. */
#ifndef BLOCK
#define BLOCK 4 /* frames a work-item */
#endif
#define LANES 16

/* Packed: WORDS words a row, INPUTS of their bits count. Global: blocks of rows, blocks of frames. */
#ifdef WORDS
__kernel void product(__global const uint *restrict weight, __global const uint *restrict frame,
                      __global int *restrict sum, const int rows) {
  const int block = get_global_id(0), first = get_global_id(1) * BLOCK;
  __global const uint *w = weight + (size_t)block * WORDS * LANES;
  __global const uint *x = frame + (size_t)first * WORDS;
  uint16 unequal[BLOCK];
  for (int f = 0; f < BLOCK; f++) unequal[f] = (uint16)(0);
  for (int k = 0; k < WORDS; k++) {
    const uint16 word = vload16(k, w);
#pragma unroll
    for (int f = 0; f < BLOCK; f++) unequal[f] += popcount(word ^ (uint16)(x[f * WORDS + k]));
  }
  for (int f = 0; f < BLOCK; f++)
    vstore16((int16)(INPUTS) - 2 * as_int16(unequal[f]), 0, sum + (size_t)(first + f) * rows + block * LANES);
}
#endif

/* Floats: weights [block of 16 rows][input][row]; 8 frames by 16 rows in registers. */
#ifdef LENGTH
__kernel void multiply(__global const float *restrict weight, __global const float *restrict frame,
                       __global float *restrict sum, const int rows) {
  const int block = get_global_id(0), first = get_global_id(1) * 8;
  __global const float *w = weight + (size_t)block * LENGTH * LANES;
  __global const float *x = frame + (size_t)first * LENGTH;
  float16 s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
  for (int k = 0; k < LENGTH; k++) {
    const float16 v = vload16(k, w);
    s0 = fma(v, (float16)(x[k]), s0);
    s1 = fma(v, (float16)(x[LENGTH + k]), s1);
    s2 = fma(v, (float16)(x[2 * LENGTH + k]), s2);
    s3 = fma(v, (float16)(x[3 * LENGTH + k]), s3);
    s4 = fma(v, (float16)(x[4 * LENGTH + k]), s4);
    s5 = fma(v, (float16)(x[5 * LENGTH + k]), s5);
    s6 = fma(v, (float16)(x[6 * LENGTH + k]), s6);
    s7 = fma(v, (float16)(x[7 * LENGTH + k]), s7);
  }
  __global float *to = sum + (size_t)first * rows + block * LANES;
  vstore16(s0, 0, to);
  vstore16(s1, 0, to + rows);
  vstore16(s2, 0, to + 2 * rows);
  vstore16(s3, 0, to + 3 * rows);
  vstore16(s4, 0, to + 4 * rows);
  vstore16(s5, 0, to + 5 * rows);
  vstore16(s6, 0, to + 6 * rows);
  vstore16(s7, 0, to + 7 * rows);
}
#endif
