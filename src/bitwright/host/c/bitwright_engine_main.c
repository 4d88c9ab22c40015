/* SPDX-License-Identifier: Apache-2.0
 * Frames through a network on an engine, as an example of bitwright_engine.h:
 *   cc -std=c99 -O2 bitwright_board.c bitwright_engine.c bitwright_image.c bitwright_engine_main.c -o engine
 *   ./engine PORT program.bwe < LEVELS
 * LEVELS: of each frame its inputs' levels as words of 32 bits, low byte first, channels of a pixel
 * side by side. A line for each frame: the elements of the outputs, then the cycles that it took.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bitwright_engine.h"
#include "bitwright_network.h"

/* A frame's levels of one input from the standard input: 1, or 0 at its end. */
static int read_levels(int32_t *levels, size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint8_t raw[4];
    if (fread(raw, 1, sizeof raw, stdin) != sizeof raw) return 0;
    levels[i] = (int32_t)((uint32_t)raw[0] | (uint32_t)raw[1] << 8 | (uint32_t)raw[2] << 16 |
                          (uint32_t)raw[3] << 24);
  }
  return 1;
}

static int run_frame(bitwright_board *board, int32_t *levels, uint8_t *bytes) {
  bitwright_engine_state state;
  for (size_t k = 0; k < BITWRIGHT_INPUTS; k++) {
    const bitwright_region *region = &bitwright_inputs[k];
    if (!read_levels(levels, bitwright_region_levels(region))) return 0;
    bitwright_region_put(region, levels, bytes);
    if (bitwright_engine_write(board, region->word, bytes, region->planes * (size_t)region->pixels)) return -1;
  }
  if (bitwright_engine_run(board, 60000, &state) != 0) return -1;
  for (size_t k = 0; k < BITWRIGHT_NETWORK_OUTPUTS; k++) {
    const bitwright_region *region = &bitwright_outputs[k];
    if (bitwright_engine_read(board, region->word, bytes, region->planes * (size_t)region->pixels)) return -1;
    bitwright_region_get(region, bytes, levels);
    for (size_t i = 0; i < bitwright_region_levels(region); i++) (void)printf("%ld ", (long)levels[i]);
  }
  (void)printf("%llu\n", (unsigned long long)state.cycles);
  return 1;
}

int main(int argc, char **argv) {
  bitwright_board board;
  int32_t *levels = malloc(BITWRIGHT_MOST_ELEMENTS * sizeof *levels);
  uint8_t *bytes = malloc(BITWRIGHT_MOST_BYTES);
  if (argc != 3) return (void)fprintf(stderr, "usage: %s PORT PROGRAM < LEVELS\n", argv[0]), 2;
  if (!levels || !bytes) return (void)fprintf(stderr, "no memory\n"), 1;
  int result = bitwright_open(&board, argv[1]);
  if (result == 0) result = bitwright_engine_load(&board, argv[2]);
  if (result == 0) {
    while ((result = run_frame(&board, levels, bytes)) == 1) continue;
  }
  if (result != 0) (void)fprintf(stderr, "%s: %s\n", argv[1], bitwright_error(&board));
  bitwright_close(&board);
  free(levels);
  free(bytes);
  return result == 0 ? 0 : 1;
}
