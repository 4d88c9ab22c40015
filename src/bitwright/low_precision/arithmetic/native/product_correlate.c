// SPDX-License-Identifier: Apache-2.0
// Images with weights: the forward product, and the gradient of the input.
//
// A tile is one position of the result, in up to ROWS images, for PANEL outputs. All its images
// meet the same taps, so taps beyond the border cost nothing, whatever stride and dilation are.
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "product.h"

#define BLOCK_BYTES (192 << 10)  // widened images that a task works on: they stay in its cache

typedef struct {
  const Shape *shape;
  const void *source, *weight;
  int16_t *packed;       // [part][panel][slot][channel pair][PANEL][2]
  float *out;
  int64_t even;          // channels, rounded up to pairs
  int64_t panels, parts, panel_size;
  int64_t image_size;    // of a widened image
  int64_t block, blocks, shares;  // images a task, tasks along images, tasks along panels
  int64_t most;          // runs of a position
  atomic_long next_panel, next_task;
  atomic_int failed;
} Job;

// The number in int8 or int16 memory; of its halves the upper (part 1) or lower one.
static inline int16_t part_of(const Job *job, int64_t part, int64_t at) {
  const int32_t value = job->shape->right_bytes == 1 ? ((const int8_t *)job->weight)[at]
                                                     : ((const int16_t *)job->weight)[at];
  if (!job->shape->split) return (int16_t)value;
  return (int16_t)(part ? value >> 8 : value & 255);
}

static void pack_panel(Job *job, int64_t part, int64_t panel) {
  const Shape *s = job->shape;
  const int64_t taps = s->kernel_height * s->kernel_width;
  int16_t *target = job->packed + (part * job->panels + panel) * job->panel_size;
  const int64_t first = panel * PANEL;
  const int64_t width = s->outputs - first < PANEL ? s->outputs - first : PANEL;
  const int64_t step_output = s->transposed ? 1 : taps * s->channels;
  const int64_t step_channel = s->transposed ? taps * s->outputs : 1;
  const int64_t step_tap = s->transposed ? s->outputs : s->channels;
  if (width < PANEL || job->even != s->channels)
    memset(target, 0, (size_t)job->panel_size * sizeof(int16_t));
  for (int64_t tap = 0; tap < taps; tap++) {
    const int64_t slot = s->row_slot[tap / s->kernel_width] * s->kernel_width +
                         s->column_slot[tap % s->kernel_width];
    int16_t *place = target + slot * job->even * PANEL;
    const int64_t base = first * step_output + tap * step_tap;
    for (int64_t c = 0; c < s->channels; c++) {
      int16_t *pair = place + c / 2 * 2 * PANEL + c % 2;
      const int64_t at = base + c * step_channel;
      for (int64_t o = 0; o < width; o++) pair[2 * o] = part_of(job, part, at + o * step_output);
    }
  }
}

static void pack(void *given) {
  Job *job = given;
  for (;;) {
    const int64_t task = atomic_fetch_add(&job->next_panel, 1);
    if (task >= job->panels * job->parts) return;
    pack_panel(job, task / job->panels, task % job->panels);
  }
}

static void widen_block(const Job *job, int64_t first, int64_t count, int16_t *target) {
  const Shape *s = job->shape;
  const int64_t pixels = s->height * s->width;
  for (int64_t n = 0; n < count; n++) {
    const int64_t from = (first + n) * pixels * s->channels;
    int16_t *image = target + n * job->image_size;
    if (job->even == s->channels) {
      bw_widen(job->source, s->left_bytes, from, image, pixels * s->channels);
      continue;
    }
    for (int64_t p = 0; p < pixels; p++) {
      int16_t *pixel = image + p * job->even;
      bw_widen(job->source, s->left_bytes, from + p * s->channels, pixel, s->channels);
      pixel[s->channels] = 0;
    }
  }
}

// The runs of one position, none longer than the limit; how many pairs they have together.
static int64_t runs_of(const Job *job, int64_t y, int64_t x, const int16_t *panel, Run *runs,
                       int64_t *count) {
  const Shape *s = job->shape;
  int64_t pairs = 0, made = 0;
  for (int32_t r = s->rows.start[y]; r < s->rows.start[y + 1]; r++) {
    for (int32_t c = s->columns.start[x]; c < s->columns.start[x + 1]; c++) {
      const int64_t slot = s->rows.tap[r] * s->kernel_width + s->columns.tap[c];
      int64_t a = (s->rows.source[r] * s->width + s->columns.source[c]) * job->even;
      const int16_t *b = panel + slot * job->even * PANEL;
      int64_t left = s->columns.length[c] * job->even / 2;
      pairs += left;
      while (left > 0) {
        const int64_t some = left < s->limit ? left : s->limit;
        runs[made++] = (Run){a, b, some};
        a += 2 * some;
        b += some * 2 * PANEL;
        left -= some;
      }
    }
  }
  *count = made;
  return pairs;
}

// Adds factor * (the sum over the runs), taking as many at a time as surely fit.
static void add_runs(const Job *job, int rows, const int16_t *const *a, const Run *runs,
                     int64_t count, double factor, double *total) {
  int32_t sums[ROWS * PANEL];
  for (int64_t begin = 0; begin < count;) {
    int64_t end = begin, pairs = 0;
    while (end < count && pairs + runs[end].pairs <= job->shape->limit) pairs += runs[end++].pairs;
    bw_tile_sums(rows, a, runs + begin, end - begin, sums);
    bw_add_sums(total, sums, rows * PANEL, factor);
    begin = end;
  }
}

static void wide_tile(const Job *job, int64_t y, int64_t x, int64_t panel, int rows,
                      const int16_t *const *a, Run *runs, float *const *out, int64_t width) {
  double total[ROWS * PANEL];
  memset(total, 0, sizeof total);
  for (int64_t part = 0; part < job->parts; part++) {
    int64_t count;
    const int16_t *b = job->packed + (part * job->panels + panel) * job->panel_size;
    runs_of(job, y, x, b, runs, &count);
    add_runs(job, rows, a, runs, count, part ? 256.0 : 1.0, total);
  }
  const double unit = ldexp(1.0, (int)-job->shape->exponent);
  for (int i = 0; i < rows; i++)
    for (int64_t o = 0; o < width; o++) out[i][o] = (float)(total[i * PANEL + o] * unit);
}

// All images of a block at one position, for one panel.
static void position(const Job *job, int64_t y, int64_t x, int64_t panel, int64_t first,
                     int64_t images, const int16_t *block, Run *runs) {
  const Shape *s = job->shape;
  const int64_t width = s->outputs - panel * PANEL < PANEL ? s->outputs - panel * PANEL : PANEL;
  const float unit = ldexpf(1.0f, (int)-s->exponent);
  int64_t count;
  const int64_t pairs = runs_of(job, y, x, job->packed + panel * job->panel_size, runs, &count);
  const int direct = bw_direct(s, pairs);
  const int64_t pixels = s->out_height * s->out_width;
  float *to = job->out + (first * pixels + y * s->out_width + x) * s->outputs + panel * PANEL;
  for (int64_t n = 0; n < images; n += ROWS) {
    const int rows = (int)(images - n < ROWS ? images - n : ROWS);
    const int16_t *a[ROWS];
    float *out[ROWS];
    for (int i = 0; i < rows; i++) {
      a[i] = block + (n + i) * job->image_size;
      out[i] = to + (n + i) * pixels * s->outputs;
    }
    if (direct)
      bw_tile_floats(rows, a, runs, count, unit, out, width);
    else
      wide_tile(job, y, x, panel, rows, a, runs, out, width);
  }
}

static void work(void *given) {
  Job *job = given;
  const Shape *s = job->shape;
  Run *runs = malloc((size_t)(job->most + 1) * sizeof(Run));
  int16_t *room = bw_allocate(job->block * job->image_size * (int64_t)sizeof(int16_t));
  if (!runs || !room) atomic_store(&job->failed, 1);
  while (runs && room) {
    const int64_t task = atomic_fetch_add(&job->next_task, 1);
    if (task >= job->blocks * job->shares) break;
    const int64_t first = task / job->shares * job->block;
    const int64_t rest = s->images - first;
    const int64_t images = rest < job->block ? rest : job->block;
    if (images <= 0) continue;
    const int64_t share = task % job->shares;
    const int64_t begin = share * job->panels / job->shares;
    const int64_t end = (share + 1) * job->panels / job->shares;
    widen_block(job, first, images, room);
    for (int64_t panel = begin; panel < end; panel++)
      for (int64_t y = 0; y < s->out_height; y++)
        for (int64_t x = 0; x < s->out_width; x++)
          position(job, y, x, panel, first, images, room, runs);
  }
  free(runs);
  free(room);
}

static int64_t most_entries(const int32_t *start, int64_t count) {
  int64_t most = 0;
  for (int64_t i = 0; i < count; i++)
    if (start[i + 1] - start[i] > most) most = start[i + 1] - start[i];
  return most;
}

static void plan(Job *job) {
  const Shape *s = job->shape;
  job->even = (s->channels + 1) / 2 * 2;
  job->panels = (s->outputs + PANEL - 1) / PANEL;
  job->parts = s->split ? 2 : 1;
  job->panel_size = s->kernel_height * s->kernel_width * job->even * PANEL;
  // An odd number of cache lines: images that are read side by side lie in different sets.
  job->image_size = ((s->height * s->width * job->even + 31) / 32 | 1) * 32;
  const int64_t bytes = job->image_size * (int64_t)sizeof(int16_t);
  int64_t most = BLOCK_BYTES / bytes / ROWS * ROWS;
  if (most < ROWS) most = ROWS;
  const int64_t threads = s->threads < 1 ? 1 : s->threads;
  int64_t blocks = (s->images + most - 1) / most;
  blocks = (blocks + threads - 1) / threads * threads;
  job->block = (s->images + blocks - 1) / blocks;
  if (job->block < ROWS) job->block = ROWS;  // fewer would use half of a tile
  job->blocks = (s->images + job->block - 1) / job->block;
  job->shares = (threads + job->blocks - 1) / job->blocks;
  if (job->shares > job->panels) job->shares = job->panels;
  const int64_t entries = most_entries(s->rows.start, s->out_height) *
                          most_entries(s->columns.start, s->out_width);
  job->most = entries * (1 + s->kernel_width * job->even / 2 / s->limit + 1);
}

// source (images, height, width, channels), weight (outputs, taps, channels) or, transposed,
// (channels, taps, outputs) -> out (images, out_height, out_width, outputs). 0, or 1 without memory.
int64_t bw_product_correlate(const Shape *shape, const void *source, const void *weight,
                             float *out) {
  Job job = {.shape = shape, .source = source, .weight = weight, .out = out};
  plan(&job);
  job.packed = bw_allocate(job.parts * job.panels * job.panel_size * (int64_t)sizeof(int16_t));
  if (!job.packed) return 1;
  const int64_t large = job.panels * job.panel_size > 1 << 16;
  bw_run_threads(pack, &job, large ? shape->threads : 1);
  bw_run_threads(work, &job, shape->threads);
  free(job.packed);
  return atomic_load(&job.failed);
}

int64_t bw_product_shape_size(void) { return (int64_t)sizeof(Shape); }
