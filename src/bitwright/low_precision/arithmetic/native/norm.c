// SPDX-License-Identifier: Apache-2.0
// Batch norm of training, with a rectifier behind it if wanted, and the rectifier alone, for images
// in channels-last memory. Sums are of blocks that do not depend on the number of threads.
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "product.h"

typedef float V8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t I8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef double D8 __attribute__((vector_size(64)));

#define BLOCK (1 << 14)  // elements of a block, about
#define STRETCH 64       // rows whose sums are float32 before they become float64

// Of one batch norm. `rows` = images x pixels. Backward: `x`, `y` are what forward took and the
// gradient of what it gave, `out` the gradient of `x`.
typedef struct {
  int64_t rows, channels, relu, threads;
  double eps, momentum;
  const float *x, *y, *weight, *bias;  // weight and bias may be NULL
  float *out, *mean, *scale;           // scale: 1 / sqrt(variance + eps)
  float *running_mean, *running_var;   // may be NULL
  float *grad_weight, *grad_bias;      // backward
} Norm;

typedef struct {
  const Norm *norm;
  double *sums;           // [block][2][channels]
  float *gain, *shift;    // [channels] each: forward is x * gain + shift
  float *other, *third;   // backward is y * gain + (x - mean) * other + third
  int64_t block, blocks;
  int backward;
  atomic_long next;
} Job;

static inline V8 load(const float *p) { return *(const V8 *)p; }
static inline V8 keep(V8 value, I8 where) { return (V8)((I8)value & where); }

// --- sums ---------------------------------------------------------------------------------------

// What is summed at one place of eight channels: forward x - origin, backward the gradient.
static inline V8 summed(const V8 x, const V8 origin, const float *y, const V8 gain, const V8 shift,
                        int backward, int relu) {
  if (!backward) return x - origin;
  const V8 value = load(y);
  return relu ? keep(value, ~(I8)(x * gain + shift <= 0.0f)) : value;
}

// Adds the two sums over some rows of eight channels: of what is summed, and of it times
// (x - origin). The origin is the first row, backward the mean.
static inline __attribute__((always_inline)) void sum_eight(
    const Job *job, int64_t c, int64_t begin, int64_t end, double *sums, int backward, int relu) {
  const Norm *n = job->norm;
  const int64_t step = n->channels;
  const V8 origin = load(backward ? n->mean + c : n->x + c);
  const V8 gain = relu ? load(job->gain + c) : origin, shift = relu ? load(job->shift + c) : origin;
  V8 first = {0}, second = {0}, third = {0}, fourth = {0};
  const float *x = n->x + begin * step + c;
  const float *y = backward ? n->y + begin * step + c : x;
  int64_t r = begin;
  for (; r + 2 <= end; r += 2, x += 2 * step, y += 2 * step) {
    const V8 a = load(x), b = load(x + step);
    const V8 p = summed(a, origin, y, gain, shift, backward, relu);
    const V8 q = summed(b, origin, y + step, gain, shift, backward, relu);
    first += p;
    second += p * (a - origin);
    third += q;
    fourth += q * (b - origin);
  }
  if (r < end) {
    const V8 p = summed(load(x), origin, y, gain, shift, backward, relu);
    first += p;
    second += p * (load(x) - origin);
  }
  const D8 one = __builtin_convertvector(first + third, D8);
  const D8 two = __builtin_convertvector(second + fourth, D8);
  for (int i = 0; i < 8; i++) sums[c + i] += one[i];
  for (int i = 0; i < 8; i++) sums[step + c + i] += two[i];
}

static void sum_one(const Job *job, int64_t c, int64_t begin, int64_t end, double *sums) {
  const Norm *n = job->norm;
  const float origin = job->backward ? n->mean[c] : n->x[c];
  float first = 0, second = 0;
  for (int64_t r = begin; r < end; r++) {
    const float x = n->x[r * n->channels + c], away = x - origin;
    float y = away;
    if (job->backward) {
      y = n->y[r * n->channels + c];
      if (n->relu && x * job->gain[c] + job->shift[c] <= 0.0f) y = 0;
    }
    first += y;
    second += y * away;
  }
  sums[c] += first;
  sums[n->channels + c] += second;
}

static void sum_blocks(void *given) {
  Job *job = given;
  const Norm *n = job->norm;
  for (;;) {
    const int64_t block = atomic_fetch_add(&job->next, 1);
    if (block >= job->blocks) return;
    double *sums = job->sums + block * 2 * n->channels;
    memset(sums, 0, (size_t)n->channels * 2 * sizeof(double));
    const int64_t first = block * job->block;
    const int64_t last = first + job->block < n->rows ? first + job->block : n->rows;
    for (int64_t begin = first; begin < last; begin += STRETCH) {
      const int64_t end = begin + STRETCH < last ? begin + STRETCH : last;
      int64_t c = 0;
      for (; c + 8 <= n->channels; c += 8) {
        if (!job->backward)
          sum_eight(job, c, begin, end, sums, 0, 0);
        else if (!n->relu)
          sum_eight(job, c, begin, end, sums, 1, 0);
        else
          sum_eight(job, c, begin, end, sums, 1, 1);
      }
      for (; c < n->channels; c++) sum_one(job, c, begin, end, sums);
    }
  }
}

static void add_blocks(const Job *job, int64_t c, double *first, double *second) {
  *first = *second = 0;
  for (int64_t block = 0; block < job->blocks; block++) {
    *first += job->sums[block * 2 * job->norm->channels + c];
    *second += job->sums[(block * 2 + 1) * job->norm->channels + c];
  }
}

// --- results ------------------------------------------------------------------------------------

static void write_forward(const Job *job, int64_t begin, int64_t end) {
  const Norm *n = job->norm;
  const int64_t channels = n->channels, relu = n->relu;
  const float *restrict x = n->x, *restrict gain = job->gain, *restrict shift = job->shift;
  float *restrict out = n->out;
  for (int64_t at = begin * channels; at < end * channels; at += channels) {
    int64_t c = 0;
    for (; c + 8 <= channels; c += 8) {
      const V8 y = load(x + at + c) * load(gain + c) + load(shift + c);
      *(V8 *)(out + at + c) = relu ? keep(y, ~(I8)(y <= 0.0f)) : y;
    }
    for (; c < channels; c++) {
      const float y = x[at + c] * gain[c] + shift[c];
      out[at + c] = relu && y <= 0.0f ? 0.0f : y;
    }
  }
}

static void write_backward(const Job *job, int64_t begin, int64_t end) {
  const Norm *n = job->norm;
  const int64_t channels = n->channels, relu = n->relu;
  const float *restrict x = n->x, *restrict y = n->y, *restrict mean = n->mean;
  const float *restrict gain = job->gain, *restrict shift = job->shift;
  const float *restrict of_x = job->other, *restrict constant = job->third;
  float *restrict out = n->out;
  for (int64_t at = begin * channels; at < end * channels; at += channels) {
    int64_t c = 0;
    for (; c + 8 <= channels; c += 8) {
      const V8 a = load(x + at + c), line = load(gain + c);
      V8 g = load(y + at + c);
      if (relu) g = keep(g, ~(I8)(a * line + load(shift + c) <= 0.0f));
      const V8 rest = (a - load(mean + c)) * load(of_x + c) + load(constant + c);
      *(V8 *)(out + at + c) = g * line + rest;
    }
    for (; c < channels; c++) {
      const float a = x[at + c];
      const int off = relu && a * gain[c] + shift[c] <= 0.0f;
      const float g = off ? 0.0f : y[at + c];
      out[at + c] = g * gain[c] + ((a - mean[c]) * of_x[c] + constant[c]);
    }
  }
}

static void write_blocks(void *given) {
  Job *job = given;
  const int64_t rows = job->norm->rows;
  for (;;) {
    const int64_t block = atomic_fetch_add(&job->next, 1);
    if (block >= job->blocks) return;
    const int64_t first = block * job->block;
    const int64_t last = first + job->block < rows ? first + job->block : rows;
    (job->backward ? write_backward : write_forward)(job, first, last);
  }
}

// Room for sums and for four numbers a channel; whether there was any.
static int prepare(Job *job) {
  const Norm *n = job->norm;
  job->block = (BLOCK / n->channels + STRETCH - 1) / STRETCH * STRETCH;
  if (job->block < STRETCH) job->block = STRETCH;
  job->blocks = (n->rows + job->block - 1) / job->block;
  job->sums = bw_allocate(job->blocks * 2 * n->channels * (int64_t)sizeof(double));
  job->gain = bw_allocate(4 * n->channels * (int64_t)sizeof(float));
  if (!job->sums || !job->gain) return 0;
  job->shift = job->gain + n->channels;
  job->other = job->shift + n->channels;
  job->third = job->other + n->channels;
  return 1;
}

static void find_line(const Job *job, int64_t c) {
  const Norm *n = job->norm;
  job->gain[c] = n->scale[c] * (n->weight ? n->weight[c] : 1.0f);
  job->shift[c] = (n->bias ? n->bias[c] : 0.0f) - n->mean[c] * job->gain[c];
}

static int64_t finish(Job *job, int complete) {
  if (complete) {
    atomic_store(&job->next, 0);
    bw_run_threads(write_blocks, job, job->norm->threads);
  }
  free(job->sums);
  free(job->gain);
  return complete ? 0 : 1;
}

// x -> out, mean, scale; the running statistics move by `momentum`. 0, or 1 without memory.
int64_t bw_norm_forward(const Norm *n) {
  Job job = {.norm = n};
  const int complete = prepare(&job);
  if (complete) {
    bw_run_threads(sum_blocks, &job, n->threads);
    for (int64_t c = 0; c < n->channels; c++) {
      double sum, squares;
      add_blocks(&job, c, &sum, &squares);
      const double away = sum / (double)n->rows;
      double variance = squares / (double)n->rows - away * away;
      if (variance < 0) variance = 0;
      const double mean = (double)n->x[c] + away;
      n->mean[c] = (float)mean;
      n->scale[c] = (float)(1.0 / sqrt(variance + n->eps));
      find_line(&job, c);
      if (!n->running_mean) continue;
      const double spread = variance * (double)n->rows / (double)(n->rows - 1);
      n->running_mean[c] += (float)(n->momentum * (mean - (double)n->running_mean[c]));
      n->running_var[c] += (float)(n->momentum * (spread - (double)n->running_var[c]));
    }
  }
  return finish(&job, complete);
}

// x, y (the gradient of what forward gave), mean, scale -> out, grad_weight, grad_bias.
int64_t bw_norm_backward(const Norm *n) {
  Job job = {.norm = n, .backward = 1};
  const int complete = prepare(&job);
  if (complete) {
    for (int64_t c = 0; c < n->channels; c++) find_line(&job, c);
    bw_run_threads(sum_blocks, &job, n->threads);
    for (int64_t c = 0; c < n->channels; c++) {
      double sum, product;
      add_blocks(&job, c, &sum, &product);
      const double scale = (double)n->scale[c], gain = (double)job.gain[c];
      n->grad_bias[c] = (float)sum;
      n->grad_weight[c] = (float)(product * scale);
      job.other[c] = (float)(-gain * scale * scale * product / (double)n->rows);
      job.third[c] = (float)(-gain * sum / (double)n->rows);
    }
  }
  return finish(&job, complete);
}

int64_t bw_norm_size(void) { return (int64_t)sizeof(Norm); }

// --- rectifier ----------------------------------------------------------------------------------

typedef struct {
  const float *x;
  float *out;
  uint8_t *bits;
  int64_t count;
  int backward;
  atomic_long next;
} Relu;

static inline uint8_t bits_of(I8 where) {
#if defined(__AVX2__)
  return (uint8_t)_mm256_movemask_ps((__m256)where);
#else
  uint8_t bits = 0;
  for (int i = 0; i < 8; i++) bits |= (uint8_t)((where[i] & 1) << i);
  return bits;
#endif
}

static void relu_blocks(void *given) {
  Relu *job = given;
  const I8 places = {1, 2, 4, 8, 16, 32, 64, 128};
  for (;;) {
    const int64_t first = atomic_fetch_add(&job->next, 1) * BLOCK;
    if (first >= job->count) return;
    const int64_t last = first + BLOCK < job->count ? first + BLOCK : job->count;
    for (int64_t i = first; i < last; i += 8) {
      V8 x = {0};
      const size_t bytes = (size_t)(last - i < 8 ? last - i : 8) * sizeof(float);
      if (bytes == sizeof x)
        x = load(job->x + i);
      else
        memcpy(&x, job->x + i, bytes);
      I8 on;
      if (job->backward) {
        const int32_t b = job->bits[i / 8];
        on = ((I8){b, b, b, b, b, b, b, b} & places) == places;
      } else {
        on = ~(I8)(x <= 0.0f);
        job->bits[i / 8] = bits_of(on);
      }
      x = keep(x, on);
      if (bytes == sizeof x)
        *(V8 *)(job->out + i) = x;
      else
        memcpy(job->out + i, &x, bytes);
    }
  }
}

// max(x, 0), and a bit for each element that says whether it passed (NaN does).
void bw_relu_forward(const float *x, float *out, uint8_t *bits, int64_t count, int64_t threads) {
  Relu job = {.x = x, .out = out, .bits = bits, .count = count};
  bw_run_threads(relu_blocks, &job, threads);
}

// x where its bit is set, else 0.
void bw_relu_backward(const float *x, float *out, const uint8_t *bits, int64_t count,
                      int64_t threads) {
  Relu job = {.x = x, .out = out, .bits = (uint8_t *)bits, .count = count, .backward = 1};
  bw_run_threads(relu_blocks, &job, threads);
}
