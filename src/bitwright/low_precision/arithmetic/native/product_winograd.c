// SPDX-License-Identifier: Apache-2.0
// 3 x 3 kernels at stride 1 with 16 instead of 36 multiplications for 2 x 2 results (Winograd's
// F(2 x 2, 3 x 3); Lavin and Gray 2016), in integers. With twice their matrix G the transformed
// weights are integers, and the sums come out times four. Everything is exact modulo 2^32, so it is
// exact where four times the result fits into 32 bits, and the transformed operands into 16; the
// caller sees to that.
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "product.h"

#define INLINE static inline __attribute__((always_inline))

#define POINTS 16
#define CHUNK 24                    // tiles at a time, at most
#define CHUNK_BYTES (256 << 10)     // of their transformed channels
#define WIDE 16                     // channels at a time

typedef int16_t V16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef int8_t B16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef int32_t I8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t U8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float F8 __attribute__((vector_size(32), aligned(4), may_alias));

typedef struct {
  const Shape *shape;
  const void *source, *weight;
  int16_t *packed;   // [panel][point][channel pair][PANEL][2]
  float *out;
  int64_t even, panels, panel_size;
  int64_t down, across, tiles, chunk;
  atomic_long next_panel, next_chunk;
  atomic_int failed;
} Job;

// --- weights ------------------------------------------------------------------------------------

static inline void three_to_four(const int32_t *g, int step, int32_t *to, int to_step) {
  const int32_t outer = g[0] + g[2 * step], middle = g[step];
  to[0] = 2 * g[0];
  to[to_step] = outer + middle;
  to[2 * to_step] = outer - middle;
  to[3 * to_step] = 2 * g[2 * step];
}

static void pack_panel(const Job *job, int64_t panel) {
  const Shape *s = job->shape;
  const int64_t step_output = s->transposed ? 1 : 9 * s->channels;
  const int64_t step_channel = s->transposed ? 9 * s->outputs : 1;
  const int64_t step_tap = s->transposed ? s->outputs : s->channels;
  const int64_t rest = s->outputs - panel * PANEL, width = rest < PANEL ? rest : PANEL;
  int16_t *target = job->packed + panel * job->panel_size;
  memset(target, 0, (size_t)job->panel_size * sizeof(int16_t));
  for (int64_t c = 0; c < s->channels; c++)
    for (int64_t o = 0; o < width; o++) {
      int32_t g[9], half[12], full[POINTS];
      for (int tap = 0; tap < 9; tap++) {
        const int64_t at =
            (panel * PANEL + o) * step_output + c * step_channel + tap * step_tap;
        const int slot = s->row_slot[tap / 3] * 3 + s->column_slot[tap % 3];
        g[slot] = s->right_bytes == 1 ? ((const int8_t *)job->weight)[at]
                                      : ((const int16_t *)job->weight)[at];
      }
      for (int x = 0; x < 3; x++) three_to_four(g + x, 3, half + x, 3);
      for (int y = 0; y < 4; y++) three_to_four(half + 3 * y, 1, full + 4 * y, 1);
      int16_t *place = target + (c / 2 * PANEL + o) * 2 + c % 2;
      for (int point = 0; point < POINTS; point++)
        place[point * job->even * PANEL] = (int16_t)full[point];
    }
}

static void pack(void *given) {
  Job *job = given;
  for (;;) {
    const int64_t panel = atomic_fetch_add(&job->next_panel, 1);
    if (panel >= job->panels) return;
    pack_panel(job, panel);
  }
}

// --- tiles --------------------------------------------------------------------------------------

// The 2 x 2 results of an image from (y, x) on.
typedef struct {
  int64_t image, y, x;
} Tile;

static inline Tile next_tile(const Job *job, Tile tile) {
  tile.x += 2;
  if (tile.x < 2 * job->across) return tile;
  tile.x = 0;
  tile.y += 2;
  if (tile.y < 2 * job->down) return tile;
  return (Tile){tile.image + 1, 0, 0};
}

// Sixteen channels of a pixel, `some` of which are there.
INLINE V16 pixel_at(const char *pixel, int64_t bytes, int64_t c, int64_t some) {
  if (bytes == 1) {
    B16 line = {0};
    if (some >= WIDE)
      line = *(const B16 *)(pixel + c);
    else
      memcpy(&line, pixel + c, (size_t)some);
    return __builtin_convertvector(line, V16);
  }
  V16 line = {0};
  if (some >= WIDE) return *(const V16 *)(pixel + 2 * c);
  memcpy(&line, pixel + 2 * c, (size_t)some * sizeof(int16_t));
  return line;
}

// Four points of one row, from the differences down the columns.
INLINE void transform_row(const V16 t[4], int16_t *to, int64_t gap, int64_t width) {
  const V16 line[4] = {t[0] - t[2], t[1] + t[2], t[2] - t[1], t[1] - t[3]};
#pragma GCC unroll 4
  for (int x = 0; x < 4; x++) {
    if (width >= WIDE)
      *(V16 *)(to + x * gap) = line[x];
    else
      memcpy(to + x * gap, &line[x], (size_t)width * sizeof(int16_t));
  }
}

// Sixteen channels of a tile, `some` of which are there and `width` of which are stored.
INLINE void transform_channels(const char *const pixels[4][4], int64_t bytes, int64_t c,
                               int64_t some, int64_t width, int16_t *to, int64_t gap) {
  V16 t[4], u[4];
#pragma GCC unroll 4
  for (int x = 0; x < 4; x++)
    t[x] = pixel_at(pixels[0][x], bytes, c, some) - pixel_at(pixels[2][x], bytes, c, some);
  transform_row(t, to, gap, width);
#pragma GCC unroll 4
  for (int x = 0; x < 4; x++) {
    const V16 one = pixel_at(pixels[1][x], bytes, c, some);
    const V16 two = pixel_at(pixels[2][x], bytes, c, some);
    t[x] = one + two;
    u[x] = two - one;
  }
  transform_row(t, to + 4 * gap, gap, width);
  transform_row(u, to + 8 * gap, gap, width);
#pragma GCC unroll 4
  for (int x = 0; x < 4; x++)
    t[x] = pixel_at(pixels[1][x], bytes, c, some) - pixel_at(pixels[3][x], bytes, c, some);
  transform_row(t, to + 12 * gap, gap, width);
}

// One tile's 4 x 4 pixels, transformed: to[point * gap + channel]. Beyond the image is `zeros`.
static void transform_tile(const Job *job, Tile tile, const char *zeros, int16_t *to, int64_t gap) {
  const Shape *s = job->shape;
  const int64_t top = tile.y + s->row_offset, left = tile.x + s->column_offset;
  const int64_t step = s->channels * s->left_bytes, line = s->width * step;
  const char *corner = (const char *)job->source + (tile.image * s->height + top) * line + left * step;
  const char *pixels[4][4];
#pragma GCC unroll 4
  for (int y = 0; y < 4; y++)
#pragma GCC unroll 4
    for (int x = 0; x < 4; x++) pixels[y][x] = corner + y * line + x * step;
  if (top < 0 || left < 0 || top + 4 > s->height || left + 4 > s->width)
    for (int y = 0; y < 4; y++)
      for (int x = 0; x < 4; x++) {
        const int64_t row = top + y, column = left + x;
        const int inside = row >= 0 && row < s->height && column >= 0 && column < s->width;
        if (!inside) pixels[y][x] = zeros;
      }
  const int64_t channels = s->channels, even = job->even;
  int64_t c = 0;
  if (s->left_bytes == 1)
    for (; c + WIDE <= channels; c += WIDE)
      transform_channels(pixels, 1, c, WIDE, WIDE, to + c, gap);
  else
    for (; c + WIDE <= channels; c += WIDE)
      transform_channels(pixels, 2, c, WIDE, WIDE, to + c, gap);
  if (c < channels)
    transform_channels(pixels, s->left_bytes, c, channels - c, even - c, to + c, gap);
}

// Eight outputs' sums, `gap` apart, to 2 x 2 results: down the columns, then along the rows.
INLINE void finish_eight(const int32_t *sums, int64_t gap, float unit, F8 results[2][2]) {
  U8 t[2][4];  // what is in between may not fit: modulo 2^32, which signed numbers are not
#pragma GCC unroll 4
  for (int x = 0; x < 4; x++) {
    const int32_t *m = sums + x * gap;
    const U8 a = *(const U8 *)m, b = *(const U8 *)(m + 4 * gap);
    const U8 c = *(const U8 *)(m + 8 * gap), d = *(const U8 *)(m + 12 * gap);
    t[0][x] = a + b + c;
    t[1][x] = b - c - d;
  }
#pragma GCC unroll 2
  for (int y = 0; y < 2; y++) {
    const U8 left = t[y][0] + t[y][1] + t[y][2], right = t[y][1] - t[y][2] - t[y][3];
    results[y][0] = __builtin_convertvector((I8)left, F8) * unit;
    results[y][1] = __builtin_convertvector((I8)right, F8) * unit;
  }
}

// Where a tile's results of a panel begin.
static inline float *place_of(const Job *job, Tile tile, int64_t panel) {
  const Shape *s = job->shape;
  const int64_t pixel = (tile.image * s->out_height + tile.y) * s->out_width + tile.x;
  return job->out + pixel * s->outputs + panel * PANEL;
}

// Memory that is written soon, so that the sums of products hide the wait for it.
static inline void expect_tile(const Job *job, Tile tile, int64_t panel) {
  const Shape *s = job->shape;
  const float *to = place_of(job, tile, panel);
  for (int y = 0; y < 2; y++)
    for (int x = 0; x < 2; x++)
      __builtin_prefetch(to + (y * s->out_width + x) * s->outputs, 1);
}

// One tile's results of a panel, as far as they are in the image.
static void finish_tile(const Job *job, Tile tile, int64_t panel, const int32_t *sums, int64_t gap,
                        float unit) {
  const Shape *s = job->shape;
  const int64_t rest = s->outputs - panel * PANEL, width = rest < PANEL ? rest : PANEL;
  const int64_t right = s->outputs, down = s->out_width * s->outputs;
  float *to = place_of(job, tile, panel);
  const int whole = tile.y + 2 <= s->out_height && tile.x + 2 <= s->out_width;
  F8 results[2][2];
  for (int64_t o = 0; o < width; o += 8) {
    finish_eight(sums + o, gap, unit, results);
    if (whole && width - o >= 8) {
      *(F8 *)(to + o) = results[0][0];
      *(F8 *)(to + right + o) = results[0][1];
      *(F8 *)(to + down + o) = results[1][0];
      *(F8 *)(to + down + right + o) = results[1][1];
      continue;
    }
    const size_t bytes = (size_t)(width - o < 8 ? width - o : 8) * sizeof(float);
    for (int y = 0; y < 2 && tile.y + y < s->out_height; y++)
      for (int x = 0; x < 2 && tile.x + x < s->out_width; x++)
        memcpy(to + y * down + x * right + o, &results[y][x], bytes);
  }
}

static void work(void *given) {
  Job *job = given;
  const Shape *s = job->shape;
  const float unit = ldexpf(1.0f, (int)-(s->exponent + 2));
  // A cache line more than the tiles need: points do not all lie in the same sets.
  const int64_t gap = job->chunk * job->even + 32, sums_gap = job->chunk * PANEL + 16;
  int16_t *left = bw_allocate(POINTS * gap * (int64_t)sizeof(int16_t));
  int32_t *sums = bw_allocate(POINTS * sums_gap * (int64_t)sizeof(int32_t));
  char *zeros = bw_allocate(s->channels * s->left_bytes);
  const int complete = left && sums && zeros;
  if (complete)
    memset(zeros, 0, (size_t)(s->channels * s->left_bytes));
  else
    atomic_store(&job->failed, 1);
  while (complete) {
    const int64_t first = atomic_fetch_add(&job->next_chunk, 1) * job->chunk;
    if (first >= job->tiles) break;
    const int64_t count = job->tiles - first < job->chunk ? job->tiles - first : job->chunk;
    Tile tiles[CHUNK];
    const int64_t each = job->down * job->across, place = first % each;
    tiles[0] = (Tile){first / each, place / job->across * 2, place % job->across * 2};
    for (int64_t i = 1; i < count; i++) tiles[i] = next_tile(job, tiles[i - 1]);
    for (int64_t i = 0; i < count; i++)
      transform_tile(job, tiles[i], zeros, left + i * job->even, gap);
    for (int64_t panel = 0; panel < job->panels; panel++) {
      const int16_t *right = job->packed + panel * job->panel_size;
      for (int64_t i = 0; i < count; i++) expect_tile(job, tiles[i], panel);
      for (int64_t point = 0; point < POINTS; point++)
        bw_tile_strip(count, left + point * gap, job->even, right + point * job->even * PANEL,
                      job->even / 2, sums + point * sums_gap);
      for (int64_t i = 0; i < count; i++)
        finish_tile(job, tiles[i], panel, sums + i * PANEL, sums_gap, unit);
    }
  }
  free(left);
  free(sums);
  free(zeros);
}

// As `bw_product_correlate`, of 3 x 3 taps at stride and dilation 1. 0, or 1 without memory.
int64_t bw_product_winograd(const Shape *s, const void *source, const void *weight, float *out) {
  Job job = {.shape = s, .source = source, .weight = weight, .out = out};
  job.even = (s->channels + 1) / 2 * 2;
  job.panels = (s->outputs + PANEL - 1) / PANEL;
  job.panel_size = POINTS * job.even * PANEL;
  job.down = (s->out_height + 1) / 2;
  job.across = (s->out_width + 1) / 2;
  job.tiles = s->images * job.down * job.across;
  job.chunk = CHUNK_BYTES / (POINTS * job.even * 2) / ROWS * ROWS;
  if (job.chunk < ROWS) job.chunk = ROWS;
  if (job.chunk > CHUNK) job.chunk = CHUNK;
  job.packed = bw_allocate(job.panels * job.panel_size * (int64_t)sizeof(int16_t));
  if (!job.packed) return 1;
  bw_run_threads(pack, &job, job.panels * job.even > 256 ? s->threads : 1);
  bw_run_threads(work, &job, s->threads);
  free(job.packed);
  return atomic_load(&job.failed);
}
