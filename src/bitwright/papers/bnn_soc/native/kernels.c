/* SPDX-License-Identifier: Apache-2.0 */
/* The document's three kernels (spec 2.16) as its ARM runs them: one row after the other, one call a layer. The
 * arguments are those of the OpenCL kernels, and the number of rows. */
#include <stdint.h>

void bw_vector_mult_float(const float *weight, const float *input, float *output, int32_t input_length,
                          int64_t rows) {
  for (int64_t row = 0; row < rows; row++) {
    float sum = 0;
    for (int64_t i = 0; i < input_length; i++) sum += weight[row * input_length + i] * input[i];
    output[row] = sum;
  }
}

/* The listing as printed: an int adds up, so terms below 1 are lost. Kept to show that it cannot be meant. */
void bw_vector_mult_as_printed(const float *weight, const float *input, float *output,
                               int32_t input_length, int64_t rows) {
  for (int64_t row = 0; row < rows; row++) {
    int sum = 0;
    for (int64_t i = 0; i < input_length; i++)
      sum = (int)((float)sum + weight[row * input_length + i] * input[i]);
    output[row] = (float)sum;
  }
}

void bw_vector_mult_xnor(const uint8_t *weight, const uint8_t *input, float *output, int32_t input_length,
                         int64_t rows) {
  for (int64_t row = 0; row < rows; row++) {
    int32_t sum = 0;
    for (int64_t i = 0; i < input_length; i++) sum += weight[row * input_length + i] == input[i] ? 1 : -1;
    output[row] = (float)sum;
  }
}

/* input_length: 32-bit words a row; process_max: bits of it that count. */
void bw_vector_mult_compressed(const uint32_t *weight, const uint32_t *input, int32_t *output,
                               int32_t input_length, int32_t process_max, int64_t rows) {
  for (int64_t row = 0; row < rows; row++) {
    int32_t sum = 0, to_process = process_max;
    for (int64_t i = 0; i < input_length; i++)
      for (int bit = 0; bit < 32; bit++)
        if (to_process > 0) {
          const uint32_t a = weight[row * input_length + i] >> bit & 1, b = input[i] >> bit & 1;
          sum += a == b ? 1 : -1;
          to_process--;
        }
    output[row] = sum;
  }
}

/* The same by whole words: n - 2 popcount((a xor b) & mask). */
void bw_vector_mult_popcount(const uint32_t *weight, const uint32_t *input, int32_t *output,
                             int32_t input_length, int32_t process_max, int64_t rows) {
  for (int64_t row = 0; row < rows; row++) {
    const int64_t whole = process_max / 32;
    int32_t unequal = 0;
    for (int64_t i = 0; i < whole; i++)
      unequal += __builtin_popcount(weight[row * input_length + i] ^ input[i]);
    if (process_max % 32)
      unequal += __builtin_popcount((weight[row * input_length + whole] ^ input[whole]) &
                                    ((1u << process_max % 32) - 1));
    output[row] = process_max - 2 * unequal;
  }
}
