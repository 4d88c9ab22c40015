/* SPDX-License-Identifier: Apache-2.0
 * A design on a board, from C99 and POSIX alone. bitwright_design.h, generated beside the
 * bitstream, says which design. Several frames are on their way at a time; what the line loses,
 * repeats or damages is sent again (docs/board-protocol.md).
 *
 *   bitwright_board board;
 *   if (bitwright_open(&board, "/dev/ttyUSB0") != 0) puts(bitwright_error(&board));
 *   bitwright_pack_pixels(pixels, frame);
 *   bitwright_run(&board, frames, count, answers, NULL);
 *   bitwright_element(answers, 0, i);    the i-th score
 */
#ifndef BITWRIGHT_BOARD_H
#define BITWRIGHT_BOARD_H

#include <stddef.h>
#include <stdint.h>

#include "bitwright_design.h"

#define BITWRIGHT_PARTS ((BITWRIGHT_ANSWER_BYTES + BITWRIGHT_CHUNK - 1u) / BITWRIGHT_CHUNK)

typedef struct {
  unsigned long sent_bytes, got_bytes, repeated_frames, damaged, timeouts;
} bitwright_statistics;

/* A session with a board; the fields are for bitwright_board.c. */
typedef struct {
  int fd;
  char error[160];
  bitwright_statistics statistics;
  uint8_t session;
  uint32_t order;
  size_t frames; /* of the session, that are done */
  uint8_t damaged;
  uint32_t received, consumed, frame, chunk, cycles; /* of the packet read last */
  uint8_t kind, packet_session, sequence, length, flags;
  uint8_t buffer[1024];
  size_t held;
} bitwright_board;

/* Opens a port, greets the board and begins a session; 0, or -1 with a reason. */
int bitwright_open(bitwright_board *board, const char *port);

/* Sends count frames of BITWRIGHT_INPUT_BYTES each; fills count answers of BITWRIGHT_ANSWER_BYTES
 * each, in the same order, and, unless cycles is NULL, the clocks of the core for each frame that
 * the board timed (others: 0). 0, or -1 with a reason; then the session is over. */
int bitwright_run(bitwright_board *board, const uint8_t *frames, size_t count, uint8_t *answers,
                  uint32_t *cycles);

/* Why the last call failed. */
const char *bitwright_error(const bitwright_board *board);

void bitwright_close(bitwright_board *board);

/* Levels of the network's input (height, width, channels; channels side by side) -> a frame. */
void bitwright_pack_levels(const int32_t *levels, uint8_t *frame);

#if BITWRIGHT_HAS_IMAGES
/* Pixels 0 to 255 of an image of the network's size -> a frame, as training did it. */
void bitwright_pack_pixels(const uint8_t *pixels, uint8_t *frame);
#endif

/* An element of an answer: its integer, with its sign. */
int64_t bitwright_element(const uint8_t *answer, unsigned output, size_t index);

#endif
