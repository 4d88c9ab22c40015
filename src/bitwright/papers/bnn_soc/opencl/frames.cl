/* SPDX-License-Identifier: Apache-2.0 */
/* Several frames at a time: matrix by matrix, in register blocks. ROWS: of weights; FRAMES: of this build's block.
 * Weights of `product` lie [block of 16 rows][word][row], so that a vector is one word of 16 rows. */
#ifndef BLOCK
#define BLOCK 4 /* frames a work-item */
#endif
#define LANES 16

/* Packed: WORDS words a row, a multiple of GROUP (the last ones 0 on both sides), INPUTS of their bits count. Bits
 * are counted by full adders: of eight words that differ, one is left to be counted in full. The vector popcount of
 * a device without one is sixteen scalar ones. Global: blocks of rows, blocks of frames. */
#ifdef WORDS
#define GROUP 8
#define ADD(high, low, a, b, c) \
  do { \
    const uint16 a_ = (a), b_ = (b), c_ = (c), odd = a_ ^ b_; \
    high = (a_ & b_) | (odd & c_); \
    low = odd ^ c_; \
  } while (0)

/* Bits set in each byte. */
inline uint16 count_bytes(uint16 v) {
  v = v - ((v >> 1) & 0x55555555u);
  v = (v & 0x33333333u) + ((v >> 2) & 0x33333333u);
  return (v + (v >> 4)) & 0x0f0f0f0fu;
}

inline uint16 sum_bytes(uint16 v) {
  v = (v & 0x00ff00ffu) + ((v >> 8) & 0x00ff00ffu);
  return (v & 0xffffu) + (v >> 16);
}

__kernel void product(__global const uint *restrict weight, __global const uint *restrict frame,
                      __global int *restrict sum, const int rows) {
  const int block = get_global_id(0), first = get_global_id(1) * BLOCK;
  __global const uint *w = weight + (size_t)block * WORDS * LANES;
  __global const uint *x = frame + (size_t)first * WORDS;
  uint16 ones[BLOCK], twos[BLOCK], fours[BLOCK], bytes[BLOCK], total[BLOCK];
#pragma unroll
  for (int f = 0; f < BLOCK; f++) ones[f] = twos[f] = fours[f] = bytes[f] = total[f] = (uint16)(0);
  for (int k = 0; k < WORDS; k += GROUP) {
#pragma unroll
    for (int f = 0; f < BLOCK; f++) {
      __global const uint *at = x + f * WORDS + k;
      uint16 two0, two1, four0, four1, eight;
#define UNEQUAL(i) (vload16(k + i, w) ^ (uint16)(at[i]))
      ADD(two0, ones[f], ones[f], UNEQUAL(0), UNEQUAL(1));
      ADD(two1, ones[f], ones[f], UNEQUAL(2), UNEQUAL(3));
      ADD(four0, twos[f], twos[f], two0, two1);
      ADD(two0, ones[f], ones[f], UNEQUAL(4), UNEQUAL(5));
      ADD(two1, ones[f], ones[f], UNEQUAL(6), UNEQUAL(7));
      ADD(four1, twos[f], twos[f], two0, two1);
      ADD(eight, fours[f], fours[f], four0, four1);
      bytes[f] += count_bytes(eight);
      if (WORDS > 31 * GROUP && k / GROUP % 31 == 30) { /* a byte holds 31 times 8 */
        total[f] += sum_bytes(bytes[f]);
        bytes[f] = (uint16)(0);
      }
    }
  }
#pragma unroll
  for (int f = 0; f < BLOCK; f++) {
    total[f] = 8 * (total[f] + sum_bytes(bytes[f])) + 4 * sum_bytes(count_bytes(fours[f])) +
               2 * sum_bytes(count_bytes(twos[f])) + sum_bytes(count_bytes(ones[f]));
    vstore16((int16)(INPUTS) - 2 * as_int16(total[f]), 0, sum + (size_t)(first + f) * rows + block * LANES);
  }
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
