/* SPDX-License-Identifier: Apache-2.0
 * Host of an engine in C99 and POSIX; see bitwright_engine.h.
 */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif
#include "bitwright_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STATUS = 0, WRITE = 1, READ = 2, START = 3 };
enum { WORD = BITWRIGHT_ENGINE_WORD_BYTES, WORDS = BITWRIGHT_ENGINE_FRAME_WORDS };
enum { IN_HEAD = 8, OUT_HEAD = 16, FRAMES = 128, POLL_MS = 2 };

static int fail(bitwright_board *board, const char *what) {
  (void)snprintf(board->error, sizeof board->error, "%s", what);
  return -1;
}

static uint64_t little(const uint8_t *bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; i++) value |= (uint64_t)bytes[i] << (8 * i);
  return value;
}

static void head(uint8_t *frame, int operation, unsigned tag, size_t words, uint32_t at) {
  frame[0] = (uint8_t)operation;
  frame[1] = (uint8_t)tag;
  frame[2] = (uint8_t)words;
  frame[3] = 0;
  for (int i = 0; i < 4; i++) frame[4 + i] = (uint8_t)(at >> (8 * i));
}

/* What an answer says; -1 for a refusal. */
static int heard(bitwright_board *board, const uint8_t *answer, bitwright_engine_state *state) {
  const bitwright_engine_state found = {answer[0], answer[1], answer[2], answer[3],
                                        little(answer + 8, 6)};
  if (state) *state = found;
  if (found.flags & BITWRIGHT_BUSY) return fail(board, "refused, since a program runs");
  if (found.flags & BITWRIGHT_OUTSIDE) return fail(board, "refused: outside of the memory");
  if (found.flags & BITWRIGHT_UNKNOWN) return fail(board, "refused: an unknown operation");
  return 0;
}

static int ask(bitwright_board *board, int operation, unsigned tag, bitwright_engine_state *state) {
  uint8_t frame[BITWRIGHT_INPUT_BYTES] = {0}, answer[BITWRIGHT_ANSWER_BYTES];
  head(frame, operation, tag, 0, 0);
  if (bitwright_run(board, frame, 1, answer, NULL) != 0) return -1;
  return heard(board, answer, state);
}

/* Words one way or the other, FRAMES frames at a time; `data` is only written where it is read. */
static int move(bitwright_board *board, int operation, uint32_t word, uint8_t *data, size_t words) {
  uint8_t *frames = calloc(FRAMES, BITWRIGHT_INPUT_BYTES);
  uint8_t *answers = malloc((size_t)FRAMES * BITWRIGHT_ANSWER_BYTES);
  int result = frames && answers ? 0 : fail(board, "no memory");
  for (size_t done = 0; done < words && result == 0;) {
    size_t count = 0, at = done;
    for (; count < FRAMES && at < words; count++) {
      uint8_t *frame = frames + count * BITWRIGHT_INPUT_BYTES;
      const size_t some = words - at < WORDS ? words - at : WORDS;
      head(frame, operation, 0, some, (uint32_t)(word + at));
      if (operation == WRITE) memcpy(frame + IN_HEAD, data + at * WORD, some * WORD);
      at += some;
    }
    result = bitwright_run(board, frames, count, answers, NULL);
    for (size_t k = 0; k < count && result == 0; k++, done += WORDS) {
      const uint8_t *answer = answers + k * BITWRIGHT_ANSWER_BYTES;
      const size_t some = words - done < WORDS ? words - done : WORDS;
      result = heard(board, answer, NULL);
      if (operation == READ && result == 0) memcpy(data + done * WORD, answer + OUT_HEAD, some * WORD);
    }
  }
  free(frames);
  free(answers);
  return result;
}

int bitwright_engine_write(bitwright_board *board, uint32_t word, const uint8_t *data,
                           size_t words) {
  return move(board, WRITE, word, (uint8_t *)(uintptr_t)data, words);
}

int bitwright_engine_read(bitwright_board *board, uint32_t word, uint8_t *data, size_t words) {
  return move(board, READ, word, data, words);
}

int bitwright_engine_load(bitwright_board *board, const char *path) {
  const char *why = NULL;
  size_t bytes;
  uint8_t *data =
      bitwright_image_read(path, WORD, BITWRIGHT_ENGINE_MEMORY_WORDS, &bytes, &why);
  if (!data) return fail(board, why);
  const int result = bitwright_engine_write(board, 0, data, bytes / WORD);
  free(data);
  return result;
}

int bitwright_engine_run(bitwright_board *board, long timeout_ms, bitwright_engine_state *state) {
  bitwright_engine_state now;
  const struct timespec pause = {0, POLL_MS * 1000000L};
  if (ask(board, STATUS, 0, &now) != 0 || ask(board, START, now.tag + 1u, &now) != 0) return -1;
  for (long waited = 0; !(now.flags & BITWRIGHT_DONE); waited += POLL_MS) {
    if (waited > timeout_ms) return fail(board, "the program has not ended in time");
    (void)nanosleep(&pause, NULL);
    if (ask(board, STATUS, 0, &now) != 0) return -1;
  }
  if (state) *state = now;
  return now.error ? fail(board, "the program ended with an error") : 0;
}
