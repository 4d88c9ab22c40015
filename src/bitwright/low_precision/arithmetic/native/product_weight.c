// SPDX-License-Identifier: Apache-2.0
// Images with gradients of results: the gradient of the weights. Pairs lie along the images.
//
// A tile is one tap, for up to ROWS channels and PANEL outputs; its sum runs over positions.
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "product.h"

#define GROUP_BYTES (1 << 20)  // of both operands, packed: they stay in the outer cache
#define BAND_BYTES (128 << 10)  // of the rows that all tiles go over before the next ones
#define TILES_A_TASK 4

typedef struct {
  const Shape *shape;
  const void *source, *result;
  int16_t *left;     // [row][channel][column][image]
  int16_t *right;    // [part][row][panel][column][image pair][PANEL][2]
  double *total;     // [tap][channel][panel][PANEL], where one sum does not cover everything
  float *out;        // (outputs, taps, channels)
  int64_t panels, parts, channel_tiles, tiles;
  int64_t group;     // images packed at a time, an even number
  int64_t first, images, pairs;  // of the group at hand
  int64_t band;      // rows of the result
  int64_t part_size;
  int direct;
  atomic_long next_row, next_tile;
  atomic_int failed;
} Job;

// --- packing ------------------------------------------------------------------------------------

// Left rows, eight images by sixteen channels at a time: target[k * step + i] = image i, channel k.
static inline void turn_bytes(const int8_t *const *images, int16_t *target, int64_t step) {
#if defined(__AVX2__)
  __m128i a[8], b[8];
  for (int i = 0; i < 8; i++) a[i] = _mm_loadu_si128((const __m128i *)images[i]);
  for (int i = 0; i < 4; i++) {  // b[i]: images i and i + 4
    b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 4]);
    b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 4]);
  }
  for (int i = 0; i < 2; i++)  // a: images i, i + 2, i + 4, i + 6 of four channels
    for (int half = 0; half < 2; half++) {
      a[4 * i + 2 * half] = _mm_unpacklo_epi8(b[2 * i + half], b[2 * i + 4 + half]);
      a[4 * i + 2 * half + 1] = _mm_unpackhi_epi8(b[2 * i + half], b[2 * i + 4 + half]);
    }
  for (int four = 0; four < 4; four++) {
    const __m128i low = _mm_unpacklo_epi8(a[four], a[4 + four]);
    const __m128i high = _mm_unpackhi_epi8(a[four], a[4 + four]);
    int16_t *to = target + 4 * four * step;
    _mm_storeu_si128((__m128i *)to, _mm_cvtepi8_epi16(low));
    _mm_storeu_si128((__m128i *)(to + step), _mm_cvtepi8_epi16(_mm_srli_si128(low, 8)));
    _mm_storeu_si128((__m128i *)(to + 2 * step), _mm_cvtepi8_epi16(high));
    _mm_storeu_si128((__m128i *)(to + 3 * step), _mm_cvtepi8_epi16(_mm_srli_si128(high, 8)));
  }
#else
  for (int k = 0; k < 16; k++)
    for (int i = 0; i < 8; i++) target[k * step + i] = images[i][k];
#endif
}

static inline int16_t element(const void *memory, int64_t bytes, int64_t at) {
  return bytes == 1 ? ((const int8_t *)memory)[at] : ((const int16_t *)memory)[at];
}

// left[c][place][n] of one row.
static void pack_left_row(const Job *job, int64_t y) {
  const Shape *s = job->shape;
  const int64_t wide = s->width * 2 * job->pairs, step = s->height * s->width * s->channels;
  const int64_t images = 2 * job->pairs;
  const int fast_rows = s->left_bytes == 1 && s->channels >= 16;
  int16_t *row = job->left + y * s->channels * wide;
  for (int64_t x = 0; x < s->width; x++) {
    int16_t *place = row + s->column_slot[x] * images;
    const int64_t from = (job->first * s->height * s->width + y * s->width + x) * s->channels;
    for (int64_t n = 0; n < images; n += 8) {
      int64_t c = 0;
      const int8_t *line[8];
      for (int i = 0; i < 8; i++) line[i] = (const int8_t *)job->source + from + (n + i) * step;
      if (fast_rows && n + 8 <= job->images)
        for (; c + 16 <= s->channels; c += 16) {
          turn_bytes(line, place + c * wide + n, wide);
          for (int i = 0; i < 8; i++) line[i] += 16;
        }
      const int64_t end = n + 8 < images ? n + 8 : images;
      for (; c < s->channels; c++)
        for (int64_t i = n; i < end; i++)
          place[c * wide + i] =
              i < job->images ? element(job->source, s->left_bytes, from + i * step + c) : 0;
    }
  }
}

static inline int16_t half_of(int32_t value, int64_t split, int64_t part) {
  if (!split) return (int16_t)value;
  return (int16_t)(part ? value >> 8 : value & 255);
}

// One pair of images at one pixel: `width` results of each in turn, zeros behind them.
static inline void pack_pair(const Shape *s, int64_t part, const void *memory, const int64_t from[2],
                             const int present[2], int64_t width, int16_t *place) {
#if LANES == 8 && defined(__AVX2__)
  if (s->right_bytes == 1 && width == PANEL && present[0] && present[1]) {
    const int8_t *bytes = memory;
    const __m128i a = _mm_loadu_si128((const __m128i *)(bytes + from[0]));
    const __m128i b = _mm_loadu_si128((const __m128i *)(bytes + from[1]));
    _mm256_storeu_si256((Vec *)place, _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)));
    _mm256_storeu_si256((Vec *)(place + PANEL), _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b)));
    return;
  }
#endif
  for (int i = 0; i < 2; i++)
    for (int64_t o = 0; o < PANEL; o++) {
      const int there = present[i] && o < width;
      const int32_t value = there ? element(memory, s->right_bytes, from[i] + o) : 0;
      place[2 * o + i] = half_of(value, s->split, part);
    }
}

static void pack_right_row(const Job *job, int64_t part, int64_t y) {
  const Shape *s = job->shape;
  const int64_t size = job->pairs * 2 * PANEL;
  const int64_t step = s->out_height * s->out_width * s->outputs;
  int16_t *row = job->right + part * job->part_size + y * job->panels * s->out_width * size;
  for (int64_t panel = 0; panel < job->panels; panel++) {
    const int64_t rest = s->outputs - panel * PANEL;
    const int64_t width = rest < PANEL ? rest : PANEL;
    int16_t *place = row + panel * s->out_width * size;
    for (int64_t p = 0; p < job->pairs; p++) {
      const int present[2] = {1, 2 * p + 1 < job->images};
      const int64_t first = (job->first + 2 * p) * step + y * s->out_width * s->outputs;
      for (int64_t x = 0; x < s->out_width; x++) {
        const int64_t at = first + x * s->outputs + panel * PANEL;
        const int64_t from[2] = {at, at + step};
        pack_pair(s, part, job->result, from, present, width, place + x * size + p * 2 * PANEL);
      }
    }
  }
}

static void pack(void *given) {
  Job *job = given;
  const int64_t left = job->shape->height, right = job->shape->out_height * job->parts;
  for (;;) {
    const int64_t task = atomic_fetch_add(&job->next_row, 1);
    if (task >= left + right) return;
    if (task < left)
      pack_left_row(job, task);
    else
      pack_right_row(job, (task - left) / job->shape->out_height,
                     (task - left) % job->shape->out_height);
  }
}

// --- tiles --------------------------------------------------------------------------------------

// One tile's place: `rows` channels from `channel` on, one panel, one tap.
typedef struct {
  int64_t ky, kx, panel, channel;
  int rows;
} Tile;

static Tile tile_of(const Job *job, int64_t number) {
  const Shape *s = job->shape;
  Tile tile;
  const int64_t strip = number % job->channel_tiles;
  number /= job->channel_tiles;
  tile.kx = number % s->kernel_width;
  number /= s->kernel_width;
  tile.ky = number % s->kernel_height;
  tile.panel = number / s->kernel_height;
  tile.channel = strip * ROWS;
  tile.rows = (int)(s->channels - tile.channel < ROWS ? s->channels - tile.channel : ROWS);
  return tile;
}

// The runs of a tile over the result's rows from `begin` to `end`, of one part.
static int64_t runs_of(const Job *job, const Tile *tile, int64_t part, int64_t begin, int64_t end,
                       Run *runs, int64_t *all) {
  const Shape *s = job->shape;
  const int64_t wide = s->width * 2 * job->pairs, size = job->pairs * 2 * PANEL;
  const int16_t *right = job->right + part * job->part_size;
  int64_t made = 0;
  *all = 0;
  for (int32_t r = s->rows.start[tile->ky]; r < s->rows.start[tile->ky + 1]; r++) {
    const int64_t y = s->rows.tap[r];  // the result's row
    if (y < begin || y >= end) continue;
    for (int32_t c = s->columns.start[tile->kx]; c < s->columns.start[tile->kx + 1]; c++) {
      const int64_t x = s->columns.tap[c];
      int64_t a = s->rows.source[r] * s->channels * wide + s->columns.source[c] * 2 * job->pairs;
      const int16_t *b = right + ((y * job->panels + tile->panel) * s->out_width + x) * size;
      int64_t left = s->columns.length[c] * job->pairs;
      *all += left;
      while (left > 0) {
        const int64_t some = left < s->limit ? left : s->limit;
        runs[made++] = (Run){a, b, some};
        a += 2 * some;
        b += some * 2 * PANEL;
        left -= some;
      }
    }
  }
  return made;
}

static void put(const Job *job, const Tile *tile, const float *values) {
  const Shape *s = job->shape;
  const int64_t taps = s->kernel_height * s->kernel_width;
  const int64_t tap = tile->ky * s->kernel_width + tile->kx, first = tile->panel * PANEL;
  const int64_t width = s->outputs - first < PANEL ? s->outputs - first : PANEL;
  for (int64_t o = 0; o < width; o++) {
    float *to = job->out + ((first + o) * taps + tap) * s->channels + tile->channel;
    for (int i = 0; i < tile->rows; i++) to[i] = values[i * PANEL + o];
  }
}

static double *total_of(const Job *job, int64_t number) {
  return job->total + number * ROWS * PANEL;
}

static void one_tile(const Job *job, int64_t number, int64_t begin, int64_t end, Run *runs) {
  const Shape *s = job->shape;
  const Tile tile = tile_of(job, number);
  const int16_t *a[ROWS];
  for (int i = 0; i < tile.rows; i++)
    a[i] = job->left + (tile.channel + i) * s->width * 2 * job->pairs;
  int32_t sums[ROWS * PANEL];
  for (int64_t part = 0; part < job->parts; part++) {
    int64_t pairs;
    const int64_t count = runs_of(job, &tile, part, begin, end, runs, &pairs);
    if (job->direct) {
      float values[ROWS * PANEL], *out[ROWS];
      for (int i = 0; i < ROWS; i++) out[i] = values + i * PANEL;
      bw_tile_floats(tile.rows, a, runs, count, ldexpf(1.0f, (int)-s->exponent), out, PANEL);
      put(job, &tile, values);
      continue;
    }
    for (int64_t at = 0; at < count;) {
      int64_t until = at, some = 0;
      while (until < count && some + runs[until].pairs <= s->limit) some += runs[until++].pairs;
      bw_tile_sums(tile.rows, a, runs + at, until - at, sums);
      bw_add_sums(total_of(job, number), sums, tile.rows * PANEL, part ? 256.0 : 1.0);
      at = until;
    }
  }
}

static void work(void *given) {
  Job *job = given;
  const Shape *s = job->shape;
  const int64_t a_row = s->out_width * (1 + s->out_width * job->pairs / s->limit + 1);
  Run *runs = malloc((size_t)(job->band * a_row + 1) * sizeof(Run));
  if (!runs) {
    atomic_store(&job->failed, 1);
    return;
  }
  for (;;) {
    const int64_t first = atomic_fetch_add(&job->next_tile, 1) * TILES_A_TASK;
    if (first >= job->tiles) break;
    const int64_t last = first + TILES_A_TASK < job->tiles ? first + TILES_A_TASK : job->tiles;
    for (int64_t y = 0; y < s->out_height; y += job->band)
      for (int64_t tile = first; tile < last; tile++) {
        const int64_t end = y + job->band < s->out_height ? y + job->band : s->out_height;
        one_tile(job, tile, y, end, runs);
      }
  }
  free(runs);
}

static void plan(Job *job) {
  const Shape *s = job->shape;
  job->panels = (s->outputs + PANEL - 1) / PANEL;
  job->parts = s->split ? 2 : 1;
  job->channel_tiles = (s->channels + ROWS - 1) / ROWS;
  job->tiles = job->channel_tiles * job->panels * s->kernel_height * s->kernel_width;
  const int64_t left = s->height * s->width * s->channels * 2;
  const int64_t right = s->out_height * s->out_width * job->panels * PANEL * 2 * job->parts;
  const int64_t even = (s->images + 1) / 2 * 2;
  job->group = GROUP_BYTES / (left + right) / 8 * 8;
  if (job->group < 16) job->group = 16;
  if (job->group > even) job->group = even;
  const int64_t a_row = (left / s->height + right / s->out_height) * job->group;
  job->band = BAND_BYTES / a_row;
  if (job->band < 1) job->band = 1;
  if (job->band > s->out_height) job->band = s->out_height;
  const int64_t all = s->out_height * s->out_width * ((s->images + 1) / 2);
  job->direct = job->group >= s->images && job->band == s->out_height && bw_direct(s, all);
}

static void finish(const Job *job) {
  const double unit = ldexp(1.0, (int)-job->shape->exponent);
  float values[ROWS * PANEL];
  for (int64_t number = 0; number < job->tiles; number++) {
    const Tile tile = tile_of(job, number);
    const double *total = total_of(job, number);
    for (int i = 0; i < ROWS * PANEL; i++) values[i] = (float)(total[i] * unit);
    put(job, &tile, values);
  }
}

// source (images, height, width, channels), result (images, out_height, out_width, outputs) ->
// out (outputs, taps, channels). Entries of `rows` for each tap: rows of the source and, as `tap`,
// of the result; `columns` likewise, the source's at their place in `column_slot`. 0, or 1 without
// memory.
int64_t bw_product_weight(const Shape *shape, const void *source, const void *result, float *out) {
  Job job = {.shape = shape, .source = source, .result = result, .out = out};
  plan(&job);
  job.part_size = shape->out_height * job.panels * shape->out_width * job.group * PANEL;
  job.left = bw_allocate(shape->height * shape->width * shape->channels * job.group * 2);
  job.right = bw_allocate(job.parts * job.part_size * 2);
  if (!job.direct) {
    const size_t count = (size_t)(job.tiles * ROWS * PANEL);
    job.total = bw_allocate((int64_t)(count * sizeof(double)));
    if (job.total) memset(job.total, 0, count * sizeof(double));
  }
  const int complete = job.left && job.right && (job.direct || job.total);
  for (int64_t first = 0; complete && first < shape->images; first += job.group) {
    job.first = first;
    job.images = shape->images - first < job.group ? shape->images - first : job.group;
    job.pairs = (job.images + 1) / 2;
    atomic_store(&job.next_row, 0);
    atomic_store(&job.next_tile, 0);
    bw_run_threads(pack, &job, shape->threads);
    bw_run_threads(work, &job, shape->threads);
  }
  if (complete && !job.direct) finish(&job);
  free(job.left);
  free(job.right);
  free(job.total);
  return complete ? atomic_load(&job.failed) : 1;
}
