/* SPDX-License-Identifier: Apache-2.0
 * Files and values of compiled networks; see bitwright_image.h.
 */
#include "bitwright_image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 8, DIGEST = 32, FILE_HEAD = MAGIC + 8 + DIGEST, VERSION = 1 };

static uint64_t little(const uint8_t *bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; i++) value |= (uint64_t)bytes[i] << (8 * i);
  return value;
}

/* What follows the table of a file whose first bytes are `start`. */
static uint8_t *rest(FILE *file, const uint8_t *start, size_t word_bytes, uint64_t most_words,
                     size_t *bytes, const char **why) {
  const long begin = FILE_HEAD + (long)little(start + MAGIC + 4, 4);
  *why = "the program cannot be read";
  if (fseek(file, 0, SEEK_END) != 0) return NULL;
  const long end = ftell(file);
  *bytes = end > begin ? (size_t)(end - begin) : 0;
  if (*bytes == 0 || *bytes % word_bytes != 0 || *bytes / word_bytes > most_words) {
    *why = "the program is cut off, or larger than the memory";
    return NULL;
  }
  uint8_t *data = malloc(*bytes);
  if (!data) return NULL;
  if (fseek(file, begin, SEEK_SET) == 0 && fread(data, 1, *bytes, file) == *bytes) return data;
  free(data);
  return NULL;
}

uint8_t *bitwright_image_read(const char *path, size_t word_bytes, uint64_t most_words,
                              size_t *bytes, const char **why) {
  uint8_t start[FILE_HEAD];
  uint8_t *data = NULL;
  FILE *file = fopen(path, "rb");
  *why = "the program cannot be opened";
  if (!file) return NULL;
  if (fread(start, 1, sizeof start, file) != sizeof start || memcmp(start, "BWENGINE", MAGIC) != 0 ||
      little(start + MAGIC, 4) != VERSION) {
    *why = "this is no image of the engine";
  } else {
    data = rest(file, start, word_bytes, most_words, bytes, why);
  }
  (void)fclose(file);
  return data;
}

size_t bitwright_region_bytes(const bitwright_region *region) {
  return (size_t)region->planes * region->pixels * region->word_bytes;
}

size_t bitwright_region_levels(const bitwright_region *region) {
  return (size_t)region->pixels / region->columns * region->width * region->channels;
}

/* Byte of element c of a word, and the plane that it is in. */
static size_t place(const bitwright_region *region, size_t word, size_t c, size_t *plane) {
  const size_t byte = (size_t)region->places[c] * (region->bits / 8u);
  *plane = byte / region->word_bytes;
  return (*plane * region->pixels + word) * region->word_bytes + byte % region->word_bytes;
}

void bitwright_region_put(const bitwright_region *region, const int32_t *levels, uint8_t *bytes) {
  size_t plane;
  const size_t channels = region->channels;
  memset(bytes, 0, bitwright_region_bytes(region));
  for (size_t word = 0; word < region->pixels; word++) {
    const size_t row = word / region->columns, column = word % region->columns;
    for (size_t block = 0; block < region->blocks; block++) {
      const size_t right = column + block * region->step;
      if (right < region->left || right - region->left >= region->width) continue;
      const int32_t *pixel = levels + (row * region->width + right - region->left) * channels;
      for (size_t c = 0; c < channels; c++) {
        bytes[place(region, word, block * channels + c, &plane)] = (uint8_t)pixel[c];
      }
    }
  }
}

void bitwright_region_get(const bitwright_region *region, const uint8_t *bytes, int32_t *levels) {
  size_t plane;
  for (size_t pixel = 0; pixel < region->pixels; pixel++) {
    for (size_t c = 0; c < region->channels; c++) {
      const uint8_t *at = bytes + place(region, pixel, c, &plane);
      if (region->bits == 32) *levels++ = (int32_t)(uint32_t)little(at, 4);
      else *levels++ = region->is_signed[plane] ? (int32_t)(int8_t)*at : (int32_t)*at;
    }
  }
}
