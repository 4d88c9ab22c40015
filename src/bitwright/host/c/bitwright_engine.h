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

/* Where an input or output of a network lies: bitwright_network.h has them. A region is rows of
 * `columns` words a plane. Channel c of block t of a word is element places[t * channels + c] of
 * `bits` bits of the word's planes, one behind the other; block t of column x is the pixel
 * x + t * step - left of the image's row of `width` pixels, or 0 where there is none. An output has
 * one block, its pixel. */
typedef struct {
  const char *name;
  uint32_t word, planes, pixels, channels;
  unsigned bits;
  const uint32_t *places;
  const uint8_t *is_signed; /* of each plane */
  uint32_t columns, width, blocks, step, left;
} bitwright_region;

int bitwright_engine_write(bitwright_board *board, uint32_t word, const uint8_t *data,
                           size_t words);
int bitwright_engine_read(bitwright_board *board, uint32_t word, uint8_t *data, size_t words);

/* Program and constants of an image file, to word 0 on. */
int bitwright_engine_load(bitwright_board *board, const char *path);

/* Starts what is loaded and waits for its end; a run that ends with an error is a failure. */
int bitwright_engine_run(bitwright_board *board, long timeout_ms, bitwright_engine_state *state);

/* Bytes of a region. */
size_t bitwright_region_bytes(const bitwright_region *region);

/* Levels of a frame that belongs to a region. */
size_t bitwright_region_levels(const bitwright_region *region);

/* Levels (pixels, channels) -> the bytes of a region, and back. */
void bitwright_region_put(const bitwright_region *region, const int32_t *levels, uint8_t *bytes);
void bitwright_region_get(const bitwright_region *region, const uint8_t *bytes, int32_t *levels);

#endif
