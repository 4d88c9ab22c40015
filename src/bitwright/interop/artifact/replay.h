/* SPDX-License-Identifier: Apache-2.0
 * Integer inference of one network, in C99 without dependencies, without heap.
 *
 * network.h (generated) says what the network is; params.bin holds its packed parameters. A
 * microcontroller links params.bin as an array and calls bw_run(); replay.c's main() compares every
 * layer with golden.bin. Images are stored (height, width, channel), channel fastest.
 */
#ifndef BW_REPLAY_H
#define BW_REPLAY_H

#include <stdint.h>

typedef enum {
  BW_CONV, BW_DENSE, BW_THRESHOLD, BW_REQUANT, BW_REQUANT_FLOAT, BW_LOOKUP, BW_MAX_POOL, BW_SUM_POOL,
  BW_SPACE_TO_DEPTH, BW_UPSAMPLE, BW_ADD, BW_CONCAT, BW_FLATTEN, BW_TOP_K
} bw_op;

typedef enum { BW_UNSIGNED, BW_SIGNED, BW_BIPOLAR } bw_encoding;

/* A tensor: its place in the arena (in words), and in golden.bin (in bytes). */
typedef struct {
  const char *name;
  int32_t height, width, channels, lo;
  int32_t arena;
  int64_t golden;
} bw_tensor;

/* A packed parameter: rows of values of a few bits, least significant bit first. */
typedef struct {
  int64_t offset;
  int32_t bits;
  bw_encoding encoding;
  int32_t rows, columns;
} bw_param;

/* A layer; what a[] means is said at each function in replay.c. A parameter of -1 is absent. */
typedef struct {
  const char *name;
  bw_op op;
  int32_t first_input, inputs, output;
  int32_t param[2];
  int64_t a[10];
} bw_node;

/* Run layer `index` on the arena: reads its inputs there, writes its output there. */
void bw_layer(int32_t index, int32_t *arena, const uint8_t *params);

/* Run the whole network; the input lies in the arena at the place of the first tensor. */
void bw_run(int32_t *arena, const uint8_t *params);

#endif
