/* SPDX-License-Identifier: Apache-2.0 */
/* Signs in bits (spec 2.16.3): input_length words of 32 bits a row, of which process_max bits count. */
__kernel void vectorMult(__global const unsigned int *restrict weight,
                         __global const unsigned int *restrict input_neuron, __global int *restrict output,
                         const int input_length, const int process_max) {
  const size_t row = get_global_id(0);
  const size_t it_r = row * input_length;
  int sum = 0, to_process = process_max;
  for (int i = 0; i < input_length; i++)
    for (int bit = 0; bit < 32; bit++)
      if (to_process > 0) {
        const unsigned int a = (weight[it_r + i] >> bit) & 1, b = (input_neuron[i] >> bit) & 1;
        sum += (a == b) ? 1 : -1;
        to_process--;
      }
  output[row] = sum;
}
