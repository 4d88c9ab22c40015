/* SPDX-License-Identifier: Apache-2.0 */
/* Signs in bytes (spec 2.16.2): equal codes are +1, others -1. */
__kernel void vectorMult(__global const unsigned char *restrict weight,
                         __global const unsigned char *restrict input_neuron,
                         __global float *restrict output, const int input_length) {
  const size_t row = get_global_id(0);
  const size_t it_r = row * input_length;
  int sum = 0;
  for (int i = 0; i < input_length; i++) sum += (weight[it_r + i] == input_neuron[i]) ? 1 : -1;
  output[row] = (float)sum;
}
