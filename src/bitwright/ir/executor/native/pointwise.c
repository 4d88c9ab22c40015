/* SPDX-License-Identifier: Apache-2.0 */
/* Input, output, packing, pooling, and thresholds or requantization that stand alone. */
#include <string.h>

#include "plan.h"

int64_t bw_requant_one(const bw_op *op, int64_t row, int64_t x);

#define READ(NAME, T)                                                                     \
  /* Levels of one image -> codes; nonzero if one leaves the interval (or is a bipolar 0). */ \
  static int NAME(const bw_op *op, const T *from, uint8_t *to, int64_t count) {           \
    const int64_t lo = op->lo, hi = op->hi, zero = op->out.zero;                          \
    int bad = 0;                                                                          \
    if (op->out.kind == BW_U8) {                                                          \
      for (int64_t i = 0; i < count; i++) {                                               \
        bad |= (from[i] < lo) | (from[i] > hi);                                           \
        to[i] = (uint8_t)(from[i] - zero);                                                \
      }                                                                                   \
    } else {                                                                              \
      for (int64_t i = 0; i < count; i++) {                                               \
        bad |= (from[i] < lo) | (from[i] > hi);                                           \
        bw_store(to, op->out.kind, i, from[i]);                                           \
      }                                                                                   \
    }                                                                                     \
    if (op->bipolar)                                                                      \
      for (int64_t i = 0; i < count; i++) bad |= from[i] == 0;                            \
    return bad;                                                                           \
  }
READ(read_u8, uint8_t)
READ(read_i8, int8_t)
READ(read_i16, int16_t)
READ(read_i32, int32_t)
READ(read_i64, int64_t)

static int read_image(const bw_op *op, const bw_feed *feed, int64_t image, uint8_t *to) {
  const int64_t count = (int64_t)op->out.h * op->out.w * op->out.c, at = image * count;
  switch (feed->kind) {
    case -1:
      if (op->lo <= 0 && op->hi >= 255 && op->out.kind == BW_U8 && op->out.zero == 0) {
        memcpy(to, (const uint8_t *)feed->data + at, (size_t)count);
        return 0;
      }
      return read_u8(op, (const uint8_t *)feed->data + at, to, count);
    case 1: return read_i8(op, (const int8_t *)feed->data + at, to, count);
    case 2: return read_i16(op, (const int16_t *)feed->data + at, to, count);
    case 4: return read_i32(op, (const int32_t *)feed->data + at, to, count);
    default: return read_i64(op, (const int64_t *)feed->data + at, to, count);
  }
}

void bw_input(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  int bad = 0;
  for (int64_t image = begin; image < end; image++)
    bad |= read_image(op, &tile->feeds[op->port], tile->first + image,
                      tile->arena + op->out.offset + image * op->out.pitch);
  if (bad) __atomic_store_n(tile->bad_port, op->port + 1, __ATOMIC_RELAXED);
}

void bw_output(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const int64_t size = (int64_t)op->in.h * op->in.w * op->in.c;
  for (int64_t image = begin; image < end; image++) {
    const uint8_t *from = tile->arena + op->in.offset + image * op->in.pitch;
    int64_t *to = tile->results[op->port] + (tile->first + image) * size;
    for (int64_t i = 0; i < size; i++) to[i] = bw_load(from, op->in.kind, i) + op->in.zero;
  }
}

/* Codes of one pixel -> 64-bit words, bit = 1 for +1 (code 2). */
static void pack_bits(const bw_op *op, const uint8_t *from, uint64_t *to) {
  const int channels = op->in.c;
  int c = 0;
#ifdef BW_AVX2
  for (; c + 64 <= channels; c += 64) {
    const __m256i one = _mm256_set1_epi8(1);
    const __m256i a = _mm256_loadu_si256((const __m256i *)(from + c));
    const __m256i b = _mm256_loadu_si256((const __m256i *)(from + c + 32));
    const uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpgt_epi8(a, one));
    const uint32_t high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpgt_epi8(b, one));
    to[c / 64] = (uint64_t)high << 32 | low;
  }
#endif
  for (; c < channels; c += 64) {
    uint64_t word = 0;
    const int count = channels - c < 64 ? channels - c : 64;
    for (int i = 0; i < count; i++) word |= (uint64_t)(from[c + i] > 1) << i;
    to[c / 64] = word;
  }
}

/* Codes of one pixel -> table offsets: 16 * (digits of `pack` channels in `radix`, first digit least). */
static void pack_index(const bw_op *op, const uint8_t *from, uint16_t *to) {
  const int channels = op->in.c, digits = op->pack, radix = op->radix;
  int c = 0;
#ifdef BW_AVX2
  const __m256i pairs = _mm256_set1_epi16((short)(1 | radix << 8));
  const __m256i quads = _mm256_set1_epi32(1 | (radix * radix) << 16);
  if (digits == 2 && radix < 128)
    for (; c + 32 <= channels; c += 32) {
      const __m256i codes = _mm256_loadu_si256((const __m256i *)(from + c));
      const __m256i index = _mm256_slli_epi16(_mm256_maddubs_epi16(codes, pairs), 4);
      _mm256_storeu_si256((__m256i *)(to + c / 2), index);
    }
  if (digits == 4)
    for (; c + 32 <= channels; c += 32) {
      const __m256i codes = _mm256_loadu_si256((const __m256i *)(from + c));
      const __m256i index = _mm256_madd_epi16(_mm256_maddubs_epi16(codes, pairs), quads);
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(index, index), 0x08);
      _mm_storeu_si128((__m128i *)(to + c / 4), _mm_slli_epi16(_mm256_castsi256_si128(packed), 4));
    }
#endif
  for (; c < channels; c += digits) {
    int index = 0, weight = 1;
    for (int d = 0; d < digits && c + d < channels; d++, weight *= radix) index += weight * from[c + d];
    to[c / digits] = (uint16_t)(16 * index);
  }
}

static void pack_pixel(const bw_op *op, const uint8_t *from, uint8_t *to) {
  switch (op->op) {
    case BW_PACK_U8: memcpy(to, from, (size_t)op->in.c); break;
    case BW_PACK_BITS: pack_bits(op, from, (uint64_t *)to); break;
    case BW_PACK_INDEX: pack_index(op, from, (uint16_t *)to); break;
    default:
      for (int c = 0; c < op->in.c; c++)
        ((int16_t *)to)[c] = (int16_t)(bw_load(from, op->in.kind, c) + op->in.zero);
  }
}

/* Bytes of a border pixel: level 0 in the packed form; `fill` is the code, or the table offset of a group. */
static void pack_border(const bw_op *op, uint8_t *to, int64_t pixels) {
  const int64_t bytes = pixels * op->out.pixel;
  if (op->op == BW_PACK_INDEX)
    for (int64_t i = 0; i < bytes / 2; i++) ((uint16_t *)to)[i] = (uint16_t)op->fill;
  else memset(to, op->op == BW_PACK_U8 ? op->fill : 0, (size_t)bytes);
}

/* Copy an image into the layout that a product reads, with its border. */
void bw_pack(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const bw_tensor *in = &op->in, *out = &op->out;
  for (int64_t item = begin; item < end; item++) {
    const int64_t image = item / out->h, y = item % out->h - op->pt;
    uint8_t *to = tile->arena + out->offset + image * out->pitch + (y + op->pt) * out->w * (int64_t)out->pixel;
    if (y < 0 || y >= in->h) {
      pack_border(op, to, out->w);
      continue;
    }
    const uint8_t *from = tile->arena + in->offset + image * in->pitch + y * in->w * in->pixel;
    pack_border(op, to, op->pl);
    to += (int64_t)op->pl * out->pixel;
    for (int x = 0; x < in->w; x++, from += in->pixel, to += out->pixel) pack_pixel(op, from, to);
    pack_border(op, to, out->w - op->pl - in->w);
  }
}

/* Windows of few bytes per kernel row, gathered: output pixel = (ky, kx, channel). No padding, no dilation in x. */
void bw_patches(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const bw_tensor *in = &op->in, *out = &op->out;
  const int length = op->kw * in->c;
  const int64_t line = (int64_t)in->w * in->c;
  for (int64_t item = begin; item < end; item++) {
    const int64_t image = item / out->h, y = item % out->h;
    const uint8_t *from = tile->arena + in->offset + image * in->pitch + y * op->sh * line;
    uint8_t *to = tile->arena + out->offset + image * out->pitch + y * out->w * out->pixel;
    int x = 0;
    if (length <= 16) /* 16 bytes at once: what is too much is overwritten by what follows */
      for (; x + 1 < out->w && out->pixel >= 16; x++, from += op->sw * in->c, to += out->pixel)
        for (int ky = 0; ky < op->kh; ky++) memcpy(to + ky * length, from + ky * op->dh * line, 16);
    for (; x < out->w; x++, from += op->sw * in->c, to += out->pixel)
      for (int ky = 0; ky < op->kh; ky++)
        memcpy(to + ky * length, from + ky * op->dh * line, (size_t)length);
  }
}

#define MAXIMUM(T)                                                        \
  do {                                                                    \
    T *best = (T *)to;                                                    \
    const T *other = (const T *)from;                                     \
    for (int c = 0; c < channels; c++)                                    \
      best[c] = best[c] > other[c] ? best[c] : other[c];                  \
  } while (0)

void bw_pool(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const bw_tensor *in = &op->in, *out = &op->out;
  const int channels = in->c;
  for (int64_t item = begin; item < end; item++) {
    const int64_t area = (int64_t)out->h * out->w, image = item / area, at = item % area;
    const uint8_t *source = tile->arena + in->offset + image * in->pitch;
    uint8_t *to = tile->arena + out->offset + image * out->pitch + at * out->pixel;
    const int top = (int)(at / out->w) * op->sh - op->pt, left = (int)(at % out->w) * op->sw - op->pl;
    int seen = 0;
    for (int y = top < 0 ? 0 : top; y < top + op->kh && y < in->h; y++)
      for (int x = left < 0 ? 0 : left; x < left + op->kw && x < in->w; x++) {
        const uint8_t *from = source + ((int64_t)y * in->w + x) * in->pixel;
        if (!seen) memcpy(to, from, (size_t)out->pixel);
        else if (in->kind == BW_U8) MAXIMUM(uint8_t);
        else if (in->kind == BW_I32) MAXIMUM(int32_t);
        else MAXIMUM(int64_t);
        seen = 1;
      }
  }
}

/* Thresholds of an int64 tensor: tables are int64. */
static int64_t threshold_one(const bw_op *op, int64_t row, int64_t padded, int64_t x) {
  const int64_t *threshold = (const int64_t *)op->threshold + row;
  int64_t low = 0, high = op->steps;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (x >= threshold[middle * padded]) low = middle + 1;
    else high = middle;
  }
  return ((const int64_t *)op->base)[row] + ((const int64_t *)op->step)[row] * low;
}

#define CHUNK 64 /* channels at a time: one vector, or a few */

/* Thresholds of bytes, compared as codes; all tables are bytes, and sums modulo 256 are what is meant. */
static void threshold_bytes(const bw_op *op, const uint8_t *from, uint8_t *to) {
  const uint8_t *base = op->base, *step = op->step;
  for (int c0 = 0; c0 < op->in.c; c0 += CHUNK) {
    const int count = op->in.c - c0 < CHUNK ? op->in.c - c0 : CHUNK;
    uint8_t x[CHUNK], reached[CHUNK] = {0};
    memcpy(x, from + c0, (size_t)count);
    const uint8_t *threshold = (const uint8_t *)op->threshold + c0;
    for (int t = 0; t < op->steps; t++, threshold += op->padded)
      for (int j = 0; j < CHUNK; j++) reached[j] = (uint8_t)(reached[j] + (x[j] >= threshold[j]));
    for (int j = 0; j < CHUNK; j++) x[j] = (uint8_t)(base[c0 + j] + step[c0 + j] * reached[j]);
    memcpy(to + c0, x, (size_t)count);
  }
}

void bw_pointwise(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const bw_tensor *in = &op->in, *out = &op->out;
  const int64_t area = (int64_t)out->h * out->w;
  for (int64_t item = begin; item < end; item++) {
    const int64_t image = item / area, at = item % area;
    const uint8_t *from = tile->arena + in->offset + image * in->pitch + at * in->pixel;
    uint8_t *to = tile->arena + out->offset + image * out->pitch + at * out->pixel;
    if (op->narrow) {
      threshold_bytes(op, from, to);
      continue;
    }
    for (int c = 0; c < in->c; c++) {
      const int64_t x = bw_load(from, in->kind, c) + in->zero;
      const int64_t code = op->op == BW_THRESHOLD ? threshold_one(op, c, op->padded, x)
                                                  : bw_requant_one(op, c, x) - out->zero;
      bw_store(to, out->kind, c, code);
    }
  }
}

/* Indices of the largest, of equals the first: each next one comes after its predecessor in that order. */
void bw_top_k(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  for (int64_t image = begin; image < end; image++) {
    const uint8_t *from = tile->arena + op->in.offset + image * op->in.pitch;
    uint8_t *to = tile->arena + op->out.offset + image * op->out.pitch;
    int64_t best = bw_load(from, op->in.kind, 0), index = 0;
    for (int c = 1; c < op->in.c; c++) {
      const int64_t x = bw_load(from, op->in.kind, c);
      if (x > best) best = x, index = c;
    }
    bw_store(to, op->out.kind, 0, index - op->out.zero);
    for (int k = 1; k < op->out.c; k++) {
      const int64_t last = best, last_index = index;
      index = -1;
      for (int c = 0; c < op->in.c; c++) {
        const int64_t x = bw_load(from, op->in.kind, c);
        const int open = x < last || (x == last && c > last_index);
        if (open && (index < 0 || x > best)) best = x, index = c;
      }
      bw_store(to, op->out.kind, k, index - op->out.zero);
    }
  }
}
