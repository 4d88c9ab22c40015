/* SPDX-License-Identifier: Apache-2.0
 * Images through a board, as an example of bitwright_board.h:
 *   cc -std=c99 -O2 bitwright_board.c bitwright_main.c -o board && ./board PORT IMAGE.pgm...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bitwright_board.h"

/* A whole file of frames as the line has them (.frames), or an image of the network's size, PGM or
 * PPM with 255 as its largest value; the frames that it holds, 0: none. */
static size_t read_frames(const char *name, uint8_t **frames, size_t held) {
  FILE *file = fopen(name, "rb");
  size_t count = 0;
  uint8_t frame[BITWRIGHT_INPUT_BYTES];
  if (!file) return 0;
  const size_t dots = strlen(name);
  int is_raw = dots > 7 && strcmp(name + dots - 7, ".frames") == 0;
#if BITWRIGHT_HAS_IMAGES
  static uint8_t pixels[BITWRIGHT_INPUT_ELEMENTS];
  if (!is_raw) {
    unsigned width = 0, height = 0, largest = 0;
    char kind = 0;
    if (fscanf(file, "P%c %u %u %u", &kind, &width, &height, &largest) == 4 && largest == 255 &&
        kind == (BITWRIGHT_CHANNELS == 1 ? '5' : '6') && width == BITWRIGHT_WIDTH &&
        height == BITWRIGHT_HEIGHT && fgetc(file) != EOF &&
        fread(pixels, 1, sizeof pixels, file) == sizeof pixels) {
      uint8_t *more = realloc(*frames, (held + 1) * BITWRIGHT_INPUT_BYTES);
      if (more) {
        *frames = more;
        bitwright_pack_pixels(pixels, more + held * BITWRIGHT_INPUT_BYTES);
        count = 1;
      }
    }
  }
#endif
  while (is_raw && fread(frame, 1, sizeof frame, file) == sizeof frame) {
    uint8_t *more = realloc(*frames, (held + count + 1) * BITWRIGHT_INPUT_BYTES);
    if (!more) break;
    *frames = more;
    memcpy(more + (held + count++) * BITWRIGHT_INPUT_BYTES, frame, sizeof frame);
  }
  (void)fclose(file);
  return count;
}

/* The files, a line of outputs for each image; 0, or what main returns. */
static int run_files(const char *port, char **files, int n, uint8_t **frames, uint8_t **answers,
                     uint32_t **cycles) {
  bitwright_board board;
  size_t count = 0;
  for (int i = 0; i < n; i++) {
    const size_t found = read_frames(files[i], frames, count);
    if (!found) return (void)fprintf(stderr, "%s: no image of the network's size\n", files[i]), 1;
    count += found;
  }
  *answers = malloc(count * BITWRIGHT_ANSWER_BYTES);
  *cycles = calloc(count, sizeof **cycles);
  if (!*answers || !*cycles) return (void)fprintf(stderr, "%s: no memory\n", port), 1;
  if (bitwright_open(&board, port) != 0) {
    return (void)fprintf(stderr, "%s: %s\n", port, board.error), 1;
  }
  const int failed = bitwright_run(&board, *frames, count, *answers, *cycles);
  if (failed) (void)fprintf(stderr, "%s: %s\n", port, board.error);
  for (size_t k = 0; !failed && k < count; k++) { /* outputs one after another */
    const uint8_t *answer = *answers + k * BITWRIGHT_ANSWER_BYTES;
    static const size_t elements[] = {BITWRIGHT_OUTPUT_ELEMENTS};
    for (unsigned output = 0; output < BITWRIGHT_OUTPUTS; output++) {
      for (size_t i = 0; i < elements[output]; i++) {
        (void)printf("%lld ", (long long)bitwright_element(answer, output, i));
      }
    }
    (void)printf("\n");
  }
  if (!failed) {
    (void)fprintf(stderr, "%lu bytes sent, %lu received, %lu images sent again\n",
                  board.statistics.sent_bytes, board.statistics.got_bytes,
                  board.statistics.repeated_frames);
  }
  bitwright_close(&board);
  return failed ? 1 : 0;
}

int main(int argc, char **argv) {
  uint8_t *frames = NULL, *answers = NULL;
  uint32_t *cycles = NULL;
  if (argc < 3) {
    (void)fprintf(stderr, "usage: %s PORT IMAGE...: PGM or PPM of the network's size\n", argv[0]);
    return 2;
  }
  const int status = run_files(argv[1], argv + 2, argc - 2, &frames, &answers, &cycles);
  free(frames);
  free(answers);
  free(cycles);
  return status;
}
