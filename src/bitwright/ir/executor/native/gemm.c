/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution and dense layers as blocks of pixels times panels of rows, and the exact fallbacks. */
#include "plan.h"

typedef struct {
  bw_micro run;
  int lanes, max_panels;
} kernel_info;

static kernel_info kernel_of(int op) {
  switch (op) {
#ifdef BW_VNNI512
    case BW_DOT8: return (kernel_info){bw_micro_dot8, BW_DOT_LANES, 4};
#else
    case BW_DOT8: return (kernel_info){bw_micro_dot8, BW_DOT_LANES, 2};
#endif
    case BW_DOT16: return (kernel_info){bw_micro_dot16, BW_DOT16_LANES, 2};
#ifdef BW_VPOPCNT
    case BW_XNOR: return (kernel_info){bw_micro_xnor, BW_XNOR_LANES, 4};
#else
    case BW_XNOR: return (kernel_info){bw_micro_xnor, BW_XNOR_LANES, 2};
#endif
    default: return (kernel_info){bw_micro_lut, BW_LUT_LANES, 2};
  }
}

/* One register block: pixels at px, panels [first, first + panels) of a group. */
BW_INLINE void finish_block(const bw_op *op, const kernel_info *kernel, int64_t group, int first,
                            int panels, int pixels, const uint8_t *const *px, uint8_t *const *base) {
  _Alignas(64) int32_t acc[BW_ACC_SIZE];
  const int64_t panel = group * op->panels + first;
  const int width = panels * kernel->lanes, row = first * kernel->lanes;
  const int count = op->rows - row < width ? op->rows - row : width;
  kernel->run(op, pixels, panels, px, (const uint8_t *)op->weight + panel * op->panel_bytes,
              panel * kernel->lanes, acc);
  if (op->narrow && !op->wraps) bw_narrow_rows(acc, pixels * width);
  uint8_t *to[BW_MAX_PIXELS];
  for (int p = 0; p < pixels; p++) to[p] = base[p] + row * bw_element(op->out.kind);
  bw_epilogue(op, acc, width, panel * kernel->lanes, count, pixels, to);
}

/* The pixels [begin, end) times the panels [first, last) of one group. */
static void block(const bw_op *op, const bw_tile *tile, const kernel_info *kernel, int64_t group,
                  int first, int last, int64_t begin, int64_t end) {
  const bw_tensor *in = &op->in, *out = &op->out;
  const uint8_t *source = tile->arena + in->offset + group * op->group_bytes;
  uint8_t *target = tile->arena + out->offset + group * op->rows * bw_element(out->kind);
  const int64_t line = (int64_t)in->w * in->pixel * op->sh, step = (int64_t)in->pixel * op->sw;
  bw_place at = bw_place_of(out, begin);
  for (int64_t pixel = begin; pixel < end;) {
    const int pixels = end - pixel >= 4 ? 4 : end - pixel >= 2 ? 2 : 1;
    const uint8_t *px[BW_MAX_PIXELS];
    uint8_t *to[BW_MAX_PIXELS];
    for (int p = 0; p < pixels; p++, bw_advance(out, &at)) {
      px[p] = source + at.image * in->pitch + at.y * line + at.x * step;
      to[p] = target + at.image * out->pitch + ((int64_t)at.y * out->w + at.x) * out->pixel;
    }
    int panel = first;
    for (int take = kernel->max_panels; panel < last; take /= 2)
      for (; last - panel >= take; panel += take)
        finish_block(op, kernel, group, panel, take, pixels, px, to);
    pixel += pixels;
  }
}

#define FEW_BYTES (12 << 10) /* weights that stay in the first-level cache beside everything else */

/* Panels that pass over the pixels together: all of them if their weights are few. */
static int panels_together(const bw_op *op, const kernel_info *kernel) {
  return op->panels * op->panel_bytes <= FEW_BYTES ? op->panels : kernel->max_panels;
}

/* Items are blocks of 4 pixels times sets of panels, all pixels of a set first. */
static int64_t pixel_blocks(const bw_op *op, const bw_tile *tile) {
  return (tile->count * op->out.h * op->out.w + 3) / 4;
}

int64_t bw_gemm_items(const bw_op *op, const bw_tile *tile) {
  const kernel_info kernel = kernel_of(op->op);
  const int together = panels_together(op, &kernel);
  return pixel_blocks(op, tile) * op->groups * ((op->panels + together - 1) / together);
}

void bw_gemm(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const kernel_info kernel = kernel_of(op->op);
  const int together = panels_together(op, &kernel);
  const int64_t sets = (op->panels + together - 1) / together;
  const int64_t blocks = pixel_blocks(op, tile), pixels = tile->count * op->out.h * op->out.w;
  while (begin < end) {
    const int64_t set = begin / blocks, from = begin % blocks;
    const int64_t to = end - set * blocks < blocks ? end - set * blocks : blocks;
    const int first = (int)(set % sets) * together;
    const int last = first + together < op->panels ? first + together : op->panels;
    block(op, tile, &kernel, set / sets, first, last, 4 * from, 4 * to < pixels ? 4 * to : pixels);
    begin = set * blocks + to;
  }
}

/* Any operands, int64 accumulators; weights [group][ky][kx][column][row]. */
void bw_wide(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end) {
  const bw_tensor *in = &op->in, *out = &op->out;
  const int columns = in->c / op->groups;
  bw_place at = bw_place_of(out, begin);
  for (int64_t pixel = begin; pixel < end; pixel++, bw_advance(out, &at)) {
    const uint8_t *image = tile->arena + in->offset + at.image * in->pitch;
    uint8_t *to = tile->arena + out->offset + at.image * out->pitch +
                  ((int64_t)at.y * out->w + at.x) * out->pixel;
    for (int group = 0; group < op->groups; group++)
      for (int r0 = 0; r0 < op->rows; r0 += 64) {
        const int count = op->rows - r0 < 64 ? op->rows - r0 : 64;
        const int64_t channel = (int64_t)group * op->rows + r0;
        int64_t acc[64];
        memcpy(acc, (const int64_t *)op->start + channel, sizeof(int64_t) * (size_t)count);
        for (int ky = 0; ky < op->kh; ky++) {
          const int y = at.y * op->sh - op->pt + ky * op->dh;
          for (int kx = 0; kx < op->kw; kx++) {
            const int x = at.x * op->sw - op->pl + kx * op->dw;
            if (y < 0 || y >= in->h || x < 0 || x >= in->w) continue;
            const int64_t base = ((int64_t)y * in->w + x) * in->c + (int64_t)group * columns;
            const int64_t tap = ((int64_t)group * op->kh + ky) * op->kw + kx;
            for (int i = 0; i < columns; i++) {
              const int64_t a = bw_load(image, in->kind, base + i) + in->zero;
              const int64_t *w = (const int64_t *)op->weight + (tap * columns + i) * op->rows + r0;
              for (int r = 0; r < count; r++) acc[r] += a * w[r];
            }
          }
        }
        for (int r = 0; r < count; r++)
          bw_store(to, out->kind, channel + r, acc[r] - out->zero);
      }
  }
}
