/* SPDX-License-Identifier: Apache-2.0 */
/* A whole binarized network in one enqueue: a work-group is a frame, its items share the rows of a layer, and signs
 * become packed inputs of the next layer without leaving the device. All weights lie in one buffer.
 * Built with -DLAYERS=n -DMOST_WORDS=n (of the widest layer's inputs). */
__kernel void network(__global const uint *restrict weight, __constant int *restrict shape,
                      __global const uint *restrict frame, __global int *restrict sum) {
  __local uint a[MOST_WORDS], b[MOST_WORDS];
  __local uint *in = a, *out = b;
  const int item = get_local_id(0), items = get_local_size(0), n = get_group_id(0);
  const int first = (shape[0] + 31) / 32, classes = shape[LAYERS];
  for (int k = item; k < first; k += items) in[k] = frame[(size_t)n * first + k];
  barrier(CLK_LOCAL_MEM_FENCE);
  __global const uint *w = weight;
  for (int layer = 0; layer < LAYERS; layer++) {
    const int inputs = shape[layer], rows = shape[layer + 1], words = (inputs + 31) / 32;
    if (layer == LAYERS - 1) {
      for (int row = item; row < rows; row += items) {
        int unequal = 0;
        for (int k = 0; k < words; k++) unequal += popcount(w[(size_t)row * words + k] ^ in[k]);
        sum[(size_t)n * classes + row] = inputs - 2 * unequal;
      }
    } else {
      for (int word = item; word < (rows + 31) / 32; word += items) {
        uint bits = 0;
        for (int bit = 0; bit < 32 && word * 32 + bit < rows; bit++) {
          __global const uint *at = w + (size_t)(word * 32 + bit) * words;
          int unequal = 0;
          for (int k = 0; k < words; k++) unequal += popcount(at[k] ^ in[k]);
          bits |= (uint)(inputs - 2 * unequal >= 0) << bit;
        }
        out[word] = bits;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      __local uint *swap = in;
      in = out;
      out = swap;
      w += (size_t)rows * words;
    }
  }
}
