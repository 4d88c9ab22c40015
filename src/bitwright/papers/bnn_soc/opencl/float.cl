/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix by vector of floats (spec 2.16.1): a work-item is a row. The document's listing adds up in an int; built
 * with -DACCUMULATOR=int this is that listing. */
#ifndef ACCUMULATOR
#define ACCUMULATOR float
#endif
__kernel void vectorMult(__global const float *restrict weight, __global const float *restrict input_neuron,
                         __global float *restrict output, const int input_length) {
  const size_t row = get_global_id(0);
  const size_t it_r = row * input_length;
  ACCUMULATOR sum = 0;
  for (int i = 0; i < input_length; i++) sum += weight[it_r + i] * input_neuron[i];
  output[row] = sum;
}
