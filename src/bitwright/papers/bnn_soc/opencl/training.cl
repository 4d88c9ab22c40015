/* SPDX-License-Identifier: Apache-2.0 */
/* The products of the backward pass: errors through the transposed binary weights, and the update of masters with
 * their binary copy. Sums run row by row and nothing is fused, so that both equal the C trainer bit for bit. */
#pragma OPENCL FP_CONTRACT OFF

/* error[j] = sum over rows of sign(weight[row][j]) * delta[row]; a work-item is a column. */
__kernel void transposed(__global const uint *restrict bits, __global const float *restrict delta,
                         __global float *restrict error, const int rows, const int words) {
  const size_t j = get_global_id(0);
  float sum = 0;
  for (int row = 0; row < rows; row++) {
    const float d = delta[row];
    if (d != 0) sum += (bits[(size_t)row * words + j / 32] >> (j % 32) & 1) ? d : -d;
  }
  error[j] = sum;
}

/* weight[row][j] = clip(weight + size * delta[row] * x[j]); a work-item is a row and 32 columns. */
__kernel void outer(__global float *restrict weight, __global uint *restrict bits,
                    __global const float *restrict delta, __global const float *restrict x,
                    const float size, const int inputs, const int words) {
  const size_t word = get_global_id(0), row = get_global_id(1);
  if (delta[row] == 0) return;
  const float g = size * delta[row];
  const int from = word * 32, to = min(from + 32, inputs);
  __global float *w = weight + row * inputs;
  uint found = 0;
  for (int j = from; j < to; j++) {
    const float moved = w[j] + g * x[j];
    const float clipped = moved > 1 ? 1.0f : moved < -1 ? -1.0f : moved;
    w[j] = clipped;
    found |= (uint)(clipped >= 0) << (j - from);
  }
  bits[row * words + word] = found;
}
