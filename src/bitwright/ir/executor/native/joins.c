/* SPDX-License-Identifier: Apache-2.0 */
/* Elements moved, joined and summed: concatenation, space to depth, upsampling, addition, sum pools, tables. */
#include "plan.h"

#define CHUNK 64 /* channels at a time */

/* Levels of some channels of one pixel. */
BW_INLINE void levels_of(const bw_tensor *t, const uint8_t *pixel, int first, int count, int64_t *to) {
  for (int c = 0; c < count; c++) to[c] = bw_load(pixel, t->kind, first + c) + t->zero;
}

/* Copies one run of channels; bytes where the storage is the same. */
BW_INLINE void copy_run(const bw_op *op, const uint8_t *from, uint8_t *to, int first) {
  const bw_tensor *in = &op->in, *out = &op->out;
  const int delta = in->zero - out->zero;
  if (in->kind == out->kind && delta == 0) {
    memcpy(to + (int64_t)first * bw_element(out->kind), from, (size_t)in->c * (size_t)bw_element(in->kind));
  } else if (in->kind == BW_U8 && out->kind == BW_U8) {
    for (int c = 0; c < in->c; c++) to[first + c] = (uint8_t)(from[c] + delta);
  } else {
    for (int c = 0; c < in->c; c++)
      bw_store(to, out->kind, first + c, bw_load(from, in->kind, c) + delta);
  }
}

/* Output pixel (y, x) takes, for each (ky, kx), the source pixel ((y*sh + ky)/dh, (x*sw + kx)/dw); its channels
 * begin at port + (ky*kw + kx) * (channels of the source). */
void bw_move(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const bw_tensor *in = &op->in;
  bw_place at = bw_place_of(&op->out, begin);
  for (int64_t pixel = begin; pixel < end; pixel++, bw_advance(&op->out, &at)) {
    uint8_t *to = bw_at(&op->out, tile, at);
    int first = op->port;
    for (int ky = 0; ky < op->kh; ky++)
      for (int kx = 0; kx < op->kw; kx++, first += in->c) {
        const bw_place source = {at.image, (at.y * op->sh + ky) / op->dh, (at.x * op->sw + kx) / op->dw};
        copy_run(op, bw_at(in, tile, source), to, first);
      }
  }
}

/* Sums of up to CHUNK channels, on their way to the output: through the epilogue, or as 64-bit levels. */
BW_INLINE void finish_levels(const bw_op *op, const int64_t *level, int first, int count, uint8_t *to) {
  if (op->wraps) { /* wide: neither fits int32 nor has an epilogue */
    for (int c = 0; c < count; c++) bw_store(to, op->out.kind, first + c, level[c] - op->out.zero);
    return;
  }
  int32_t acc[CHUNK];
  for (int c = 0; c < CHUNK; c++) acc[c] = c < count ? (int32_t)level[c] : 0;
  if (op->narrow) bw_narrow_rows(acc, CHUNK);
  uint8_t *const target = to + (int64_t)first * bw_element(op->out.kind);
  bw_epilogue(op, acc, CHUNK, first, count, 1, &target);
}

/* Bytes in, and sums that fit int16: the usual residual connection. */
BW_INLINE void add_narrow(const bw_op *op, const uint8_t *a, const uint8_t *b, uint8_t *to) {
  const int16_t m0 = (int16_t)op->times[0], m1 = (int16_t)op->times[1];
  const int16_t base = (int16_t)(m0 * op->in.zero + m1 * op->other.zero);
  for (int c0 = 0; c0 < op->in.c; c0 += CHUNK) {
    const int count = op->in.c - c0 < CHUNK ? op->in.c - c0 : CHUNK;
    int16_t acc[CHUNK];
    for (int c = 0; c < count; c++) acc[c] = (int16_t)(m0 * a[c0 + c] + m1 * b[c0 + c] + base);
    uint8_t *const target = to + (int64_t)c0 * bw_element(op->out.kind);
    bw_epilogue(op, acc, CHUNK, c0, count, 1, &target);
  }
}

void bw_add(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const int bytes = op->narrow && op->in.kind == BW_U8 && op->other.kind == BW_U8;
  bw_place at = bw_place_of(&op->out, begin);
  for (int64_t pixel = begin; pixel < end; pixel++, bw_advance(&op->out, &at)) {
    const uint8_t *a = bw_at(&op->in, tile, at), *b = bw_at(&op->other, tile, at);
    uint8_t *to = bw_at(&op->out, tile, at);
    if (bytes) {
      add_narrow(op, a, b, to);
      continue;
    }
    for (int c0 = 0; c0 < op->in.c; c0 += CHUNK) {
      const int count = op->in.c - c0 < CHUNK ? op->in.c - c0 : CHUNK;
      int64_t x[CHUNK], y[CHUNK];
      levels_of(&op->in, a, c0, count, x);
      levels_of(&op->other, b, c0, count, y);
      for (int c = 0; c < count; c++) x[c] = op->times[0] * x[c] + op->times[1] * y[c];
      finish_levels(op, x, c0, count, to);
    }
  }
}

void bw_sum_pool(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const bw_tensor *in = &op->in;
  bw_place at = bw_place_of(&op->out, begin);
  for (int64_t pixel = begin; pixel < end; pixel++, bw_advance(&op->out, &at)) {
    uint8_t *to = bw_at(&op->out, tile, at);
    const int top = at.y * op->sh - op->pt, left = at.x * op->sw - op->pl;
    for (int c0 = 0; c0 < in->c; c0 += CHUNK) {
      const int count = in->c - c0 < CHUNK ? in->c - c0 : CHUNK;
      int64_t sum[CHUNK] = {0};
      for (int y = top < 0 ? 0 : top; y < top + op->kh && y < in->h; y++)
        for (int x = left < 0 ? 0 : left; x < left + op->kw && x < in->w; x++) {
          const uint8_t *from = bw_at(in, tile, (bw_place){at.image, y, x});
          if (in->kind == BW_U8)
            for (int c = 0; c < count; c++) sum[c] += from[c0 + c] + in->zero;
          else
            for (int c = 0; c < count; c++) sum[c] += bw_load(from, in->kind, c0 + c);
        }
      finish_levels(op, sum, c0, count, to);
    }
  }
}

/* Codes by table: `fill` entries a channel, the first for the level `lo`. */
void bw_lookup(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const bw_tensor *in = &op->in, *out = &op->out;
  const int64_t shift = in->zero - op->lo;
  bw_place at = bw_place_of(out, begin);
  for (int64_t pixel = begin; pixel < end; pixel++, bw_advance(out, &at)) {
    const uint8_t *from = bw_at(in, tile, at);
    uint8_t *to = bw_at(out, tile, at);
    if (out->kind == BW_U8) {
      const uint8_t *table = (const uint8_t *)op->table;
      for (int c = 0; c < in->c; c++, table += op->fill) to[c] = table[bw_load(from, in->kind, c) + shift];
    } else {
      const int64_t *table = (const int64_t *)op->table;
      for (int c = 0; c < in->c; c++, table += op->fill)
        bw_store(to, out->kind, c, table[bw_load(from, in->kind, c) + shift]);
    }
  }
}
