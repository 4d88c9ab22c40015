/* SPDX-License-Identifier: Apache-2.0
 * A compiled network for a host of an engine, whatever lies between the two: its file, and where
 * its values lie in the engine's memory (docs/engine.md). C99, nothing else.
 */
#ifndef BITWRIGHT_IMAGE_H
#define BITWRIGHT_IMAGE_H

#include <stddef.h>
#include <stdint.h>

/* Where an input or output of a network lies: bitwright_network.h has them. A region is rows of
 * `columns` words a plane. Channel c of block t of a word is element places[t * channels + c] of
 * `bits` bits of the word's planes, one behind the other; block t of column x is the pixel
 * x + t * step - left of the image's row of `width` pixels, or 0 where there is none. An output has
 * one block, its pixel. A word has `word_bytes`. */
typedef struct {
  const char *name;
  uint32_t word, planes, pixels, channels;
  unsigned bits;
  const uint32_t *places;
  const uint8_t *is_signed; /* of each plane */
  uint32_t columns, width, blocks, step, left, word_bytes;
} bitwright_region;

/* Program and constants of an image file, which belong to word 0 on, and their bytes: of whole words,
 * at most `most_words`. To be freed. NULL with the reason in `why`. */
uint8_t *bitwright_image_read(const char *path, size_t word_bytes, uint64_t most_words,
                              size_t *bytes, const char **why);

/* Bytes of a region. */
size_t bitwright_region_bytes(const bitwright_region *region);

/* Levels of a frame that belongs to a region. */
size_t bitwright_region_levels(const bitwright_region *region);

/* Levels (pixels, channels) -> the bytes of a region, and back. */
void bitwright_region_put(const bitwright_region *region, const int32_t *levels, uint8_t *bytes);
void bitwright_region_get(const bitwright_region *region, const uint8_t *bytes, int32_t *levels);

#endif
