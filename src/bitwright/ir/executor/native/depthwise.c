/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolution, one output channel an input channel: lanes are channels, weights lie [tap][channel].
 * Narrow: every partial sum fits int16, so 16 channels are one vector, and each weight serves 4 pixels of a row.
 */
#include "plan.h"

#define LANES 16
#define CHANNELS 128 /* accumulators of 4 pixels fill BW_ACC_SIZE / 2 words */

/* One pixel, any window, int32. */
static void one_wide(const bw_op *op, const bw_tile *tile, bw_place at) {
  const bw_tensor *in = &op->in;
  const uint8_t *image = tile->arena + in->offset + at.image * in->pitch;
  uint8_t *to = bw_at(&op->out, tile, at);
  for (int c0 = 0; c0 < in->c; c0 += 64) {
    const int count = in->c - c0 < 64 ? in->c - c0 : 64;
    int32_t acc[64];
    memcpy(acc, (const int32_t *)op->start + c0, sizeof acc);
    for (int ky = 0; ky < op->kh; ky++) {
      const int y = at.y * op->sh - op->pt + ky * op->dh;
      if (y < 0 || y >= in->h) continue;
      for (int kx = 0; kx < op->kw; kx++) {
        const int x = at.x * op->sw - op->pl + kx * op->dw;
        if (x < 0 || x >= in->w) continue;
        const uint8_t *a = image + ((int64_t)y * in->w + x) * in->pixel + c0;
        const int16_t *w = (const int16_t *)op->weight + (ky * op->kw + kx) * (int64_t)in->c + c0;
        for (int c = 0; c < count; c++) acc[c] += (a[c] + in->zero) * w[c];
      }
    }
    if (op->narrow) bw_narrow_rows(acc, 64);
    uint8_t *const at_channel = to + c0 * bw_element(op->out.kind);
    bw_epilogue(op, acc, 64, c0, count, 1, &at_channel);
  }
}

/* `pixels` neighbours in a row, channels [c0, c0 + count); taps [y0, y1) x [x0, x1) lie inside the image.
 * Whole vectors are read and written: what lies beyond the channels is never used. */
BW_INLINE void taps(const bw_op *op, const uint8_t *from, const int pixels, const int *y, const int *x,
                    int c0, int count, int16_t acc[][CHANNELS]) {
  const bw_tensor *in = &op->in;
  const int64_t step = (int64_t)op->sw * in->pixel, line = (int64_t)in->w * in->pixel;
  const int16_t *start = (const int16_t *)op->table + c0;
  for (int c = 0; c < count; c += LANES) {
#ifdef BW_AVX2
    __m256i sum[BW_MAX_PIXELS];
    const __m256i zero = _mm256_set1_epi16((short)in->zero);
    for (int p = 0; p < pixels; p++) sum[p] = _mm256_loadu_si256((const __m256i *)(start + c));
    for (int ky = y[0]; ky < y[1]; ky++) {
      const uint8_t *row = from + ky * op->dh * line + c0 + c;
      const int16_t *w = (const int16_t *)op->weight + ky * op->kw * (int64_t)in->c + c0 + c;
      for (int kx = x[0]; kx < x[1]; kx++) {
        const __m256i weight = _mm256_loadu_si256((const __m256i *)(w + kx * (int64_t)in->c));
        const uint8_t *a = row + kx * op->dw * (int64_t)in->pixel;
        for (int p = 0; p < pixels; p++) {
          const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(a + p * step)));
          const __m256i level = _mm256_add_epi16(code, zero);
          sum[p] = _mm256_add_epi16(sum[p], _mm256_mullo_epi16(level, weight));
        }
      }
    }
    for (int p = 0; p < pixels; p++) _mm256_storeu_si256((__m256i *)(acc[p] + c), sum[p]);
#else
    int16_t sum[BW_MAX_PIXELS][LANES];
    for (int p = 0; p < pixels; p++) memcpy(sum[p], start + c, sizeof sum[p]);
    for (int ky = y[0]; ky < y[1]; ky++)
      for (int kx = x[0]; kx < x[1]; kx++) {
        const uint8_t *a = from + ky * op->dh * line + kx * op->dw * (int64_t)in->pixel + c0 + c;
        const int16_t *w = (const int16_t *)op->weight + (ky * op->kw + kx) * (int64_t)in->c + c0 + c;
        for (int p = 0; p < pixels; p++)
          for (int j = 0; j < LANES; j++)
            sum[p][j] = (int16_t)(sum[p][j] + (a[p * step + j] + in->zero) * w[j]);
      }
    for (int p = 0; p < pixels; p++) memcpy(acc[p] + c, sum[p], sizeof sum[p]);
#endif
  }
}

static void block(const bw_op *op, const bw_tile *tile, bw_place at, int pixels, const int *y,
                  const int *x) {
  const bw_tensor *in = &op->in;
  const int top = at.y * op->sh - op->pt, left = at.x * op->sw - op->pl;
  const uint8_t *from = tile->arena + in->offset + at.image * in->pitch +
                        ((int64_t)top * in->w + left) * in->pixel;
  uint8_t *target = bw_at(&op->out, tile, at);
  for (int c0 = 0; c0 < in->c; c0 += CHANNELS) {
    const int count = in->c - c0 < CHANNELS ? in->c - c0 : CHANNELS;
    _Alignas(64) int16_t acc[BW_MAX_PIXELS][CHANNELS];
    uint8_t *to[BW_MAX_PIXELS];
    for (int p = 0; p < pixels; p++)
      to[p] = target + p * (int64_t)op->out.pixel + c0 * bw_element(op->out.kind);
    if (pixels == 4) taps(op, from, 4, y, x, c0, count, acc);
    else taps(op, from, 1, y, x, c0, count, acc);
    bw_epilogue(op, acc, CHANNELS, c0, count, pixels, to);
  }
}

/* Taps of one axis inside the image: [range[0], range[1]). */
BW_INLINE void inside(int first, int size, int taps, int dilation, int *range) {
  range[0] = first < 0 ? (-first + dilation - 1) / dilation : 0;
  const int room = size - first;
  const int fit = room <= 0 ? 0 : (room + dilation - 1) / dilation;
  range[1] = fit < taps ? fit : taps;
  if (range[0] > range[1]) range[0] = range[1];
}

void bw_depthwise(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const bw_tensor *in = &op->in, *out = &op->out;
  bw_place at = bw_place_of(out, begin);
  for (int64_t pixel = begin; pixel < end;) {
    int pixels = 1;
    if (!op->narrow) {
      one_wide(op, tile, at);
    } else {
      int y[2], x[2];
      const int left = at.x * op->sw - op->pl;
      inside(at.y * op->sh - op->pt, in->h, op->kh, op->dh, y);
      inside(left, in->w, op->kw, op->dw, x);
      const int reach = left + 3 * op->sw + (op->kw - 1) * op->dw;
      if (left >= 0 && reach < in->w && at.x + 4 <= out->w && end - pixel >= 4) pixels = 4;
      block(op, tile, at, pixels, y, x);
    }
    pixel += pixels;
    for (int p = 0; p < pixels; p++) bw_advance(out, &at);
  }
}
