/* SPDX-License-Identifier: Apache-2.0 */
/* One layer backwards, a share of its columns: the errors of the units in front of it through the weights as they
 * are, then the new masters, then their binary copy, in one pass over memory. */
#include "network.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* Bit j: w[j] >= 0. */
BW_INLINE uint64_t sign_word(const float *w) {
  uint64_t word = 0;
#if defined(__AVX512F__)
  for (int j = 0; j < 64; j += 16)
    word |= (uint64_t)_mm512_cmp_ps_mask(_mm512_loadu_ps(w + j), _mm512_setzero_ps(), _CMP_GE_OQ) << j;
#elif defined(__AVX2__)
  for (int j = 0; j < 64; j += 8)
    word |= (uint64_t)(uint32_t)_mm256_movemask_ps(
                _mm256_cmp_ps(_mm256_loadu_ps(w + j), _mm256_setzero_ps(), _CMP_GE_OQ)) << j;
#else
  for (int j = 0; j < 64; j++) word |= (uint64_t)(w[j] >= 0) << j;
#endif
  return word;
}

/* The copies of 64 weights of which `bits` are +1. */
BW_INLINE void copies(const bw_layer *layer, int64_t at, uint64_t bits) {
  layer->bits[at / 64] = bits;
  if (layer->code)
    for (int j = 0; j < 64; j++) layer->code[at + j] = bits >> j & 1 ? 1 : -1;
  if (layer->sign)
    for (int j = 0; j < 64; j++) layer->sign[at + j] = bits >> j & 1 ? 1.0f : -1.0f;
}

static uint64_t drawn_word(const bw_layer *layer, uint64_t key, int64_t row, int64_t column) {
  const float *w = layer->weight + row * layer->stride + column;
  uint64_t word = 0;
  for (int j = 0; j < 64; j++) {
    const float u = bw_uniform(key, row * layer->inputs + column + j);
    word |= (uint64_t)((double)u < bw_hard_sigmoid(w[j])) << j;
  }
  return word;
}

/* The binary copy of the columns [from, to) of all rows. */
void bw_binarize(const bw_network *net, int64_t step, int64_t number, int64_t from, int64_t to) {
  const bw_layer *layer = net->layer + number;
  const uint64_t key = bw_key(net->seed, step, number * BW_STREAMS + BW_WEIGHTS);
  for (int64_t row = 0; row < layer->outputs; row++)
    for (int64_t c = from; c < to; c += 64) {
      const int64_t at = row * layer->stride + c;
      copies(layer, at, net->stochastic_weights ? drawn_word(layer, key, row, c)
                                                : sign_word(layer->weight + at));
    }
}

/* error[j] += weight[j] * delta, by the sign of the weight, its drawn bit, or the master. */
static void pull(const bw_network *net, const bw_layer *layer, int64_t at, float delta, float *error,
                 int64_t count) {
  const float *w = layer->weight + at;
  if (!net->binary || net->float_back) {
    for (int64_t j = 0; j < count; j++) error[j] += w[j] * delta;
  } else if (net->stochastic_weights) {
    const uint64_t *bits = layer->bits + at / 64;
    for (int64_t j = 0; j < count; j++) error[j] += bits[j / 64] >> (j % 64) & 1 ? delta : -delta;
  } else {
    for (int64_t j = 0; j < count; j++) error[j] += w[j] >= 0 ? delta : -delta;
  }
}

static void push(const bw_network *net, const bw_layer *layer, int64_t at, float g, const float *x,
                 int64_t count) {
  float *w = layer->weight + at;
  if (!net->clip) {
    for (int64_t j = 0; j < count; j++) w[j] = w[j] + g * x[j];
  } else {
    for (int64_t j = 0; j < count; j++) {
      const float v = w[j] + g * x[j];
      w[j] = v > 1.0f ? 1.0f : v < -1.0f ? -1.0f : v;
    }
  }
  if (net->binary && !net->stochastic_weights)
    for (int64_t j = 0; j < count; j += 64) copies(layer, at + j, sign_word(w + j));
}

void bw_backward(bw_network *net, int64_t step, int64_t number, double rate, int64_t part, int64_t parts) {
  const bw_layer *layer = net->layer + number;
  bw_units *in = net->units + number;
  const bw_units *out = net->units + number + 1;
  const float size = (float)(rate * layer->rate_scale);
  int64_t from, to;
  bw_share(layer->inputs, part, parts, &from, &to);
  if (from == to) return;
  for (int64_t j = from; j < to; j++) in->delta[j] = 0.0f;
  enum { BLOCK = 1024 }; /* columns whose errors and inputs stay in the first-level cache */
  for (int64_t row = 0; row < layer->outputs; row++) {
    const float delta = out->delta[row], g = size * delta;
    if (delta == 0.0f) continue;
    for (int64_t c = from; c < to; c += BLOCK) {
      const int64_t count = to - c < BLOCK ? to - c : BLOCK, at = row * layer->stride + c;
      if (number) pull(net, layer, at, delta, in->delta + c, count);
      push(net, layer, at, g, in->value + c, count);
    }
    if (layer->bias && from == 0) layer->bias[row] += g;
  }
  if (net->binary && net->stochastic_weights) bw_binarize(net, step + 1, number, from, to);
  if (!number) return;
  const float kept = bw_kept(net, number);
  for (int64_t j = from; j < to && j < in->count; j++) {
    const int there = in->mask[j / 64] >> (j % 64) & 1;
    const float at = net->at_sum ? in->sum[j] : in->output[j];
    const float back = in->delta[j] / (float)layer->error_scale;
    in->delta[j] = there ? bw_derivative(net->backward, at) * kept * back : 0.0f;
  }
}
