/* SPDX-License-Identifier: Apache-2.0 */
/* The same interface by whole words; unused bits are 0 on both sides. With -DWORDS=n and -DINPUTS=n the sizes are
 * those of one layer and known to the compiler. */
#ifndef WORDS
#define WORDS input_length
#define INPUTS process_max
#endif
__kernel void vectorMult(__global const unsigned int *restrict weight,
                         __global const unsigned int *restrict input_neuron, __global int *restrict output,
                         const int input_length, const int process_max) {
  const size_t row = get_global_id(0);
  const size_t it_r = row * WORDS;
  int unequal = 0;
  for (int i = 0; i < WORDS; i++) unequal += popcount(weight[it_r + i] ^ input_neuron[i]);
  output[row] = INPUTS - 2 * unequal;
}
