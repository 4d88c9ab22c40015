/* SPDX-License-Identifier: Apache-2.0
 * Programs on an engine behind bitwright_board.h: its memory written and read, a program started,
 * its cycles read (docs/engine.md). Words have BITWRIGHT_ENGINE_WORD_BYTES; a program begins at
 * word 0. Every call may be made again after a failure. All return 0, or -1 with the reason in
 * bitwright_error(board).
 *
 *   bitwright_engine_load(&board, "program.bwe");
 *   bitwright_region_put(&bitwright_inputs[0], levels, words);
 *   bitwright_engine_write(&board, bitwright_inputs[0].word, words, n);
 *   bitwright_engine_run(&board, 60000, &state);
 *   bitwright_engine_read(&board, bitwright_outputs[0].word, words, n);
 *   bitwright_region_get(&bitwright_outputs[0], words, levels);
 */
#ifndef BITWRIGHT_ENGINE_H
#define BITWRIGHT_ENGINE_H

#include "bitwright_board.h"
#include "bitwright_image.h"

enum {
  BITWRIGHT_RUNNING = 1,
  BITWRIGHT_DONE = 2,
  BITWRIGHT_BUSY = 4,
  BITWRIGHT_OUTSIDE = 8,
  BITWRIGHT_UNKNOWN = 16,
  BITWRIGHT_READY = 32
};

/* What the engine says of itself: flags as above; of the last run its code, error bits, cycles. */
typedef struct {
  uint8_t flags, code, error, tag;
  uint64_t cycles;
} bitwright_engine_state;

int bitwright_engine_write(bitwright_board *board, uint32_t word, const uint8_t *data,
                           size_t words);
int bitwright_engine_read(bitwright_board *board, uint32_t word, uint8_t *data, size_t words);

/* Program and constants of an image file, to word 0 on. */
int bitwright_engine_load(bitwright_board *board, const char *path);

/* Starts what is loaded and waits for its end; a run that ends with an error is a failure. */
int bitwright_engine_run(bitwright_board *board, long timeout_ms, bitwright_engine_state *state);

#endif
