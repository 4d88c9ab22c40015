/* SPDX-License-Identifier: Apache-2.0 */
/* One layer forwards: the sums of a share of its units by the chosen kernel, activation, binarization. */
#include "network.h"

#include <string.h>

#define LANES 16 /* of a float sum: lane l adds columns l, l + 16, ...; then halves are added */

static float dot(const float *w, const float *x, int64_t stride) {
  float lane[LANES] = {0};
  for (int64_t i = 0; i < stride; i += LANES)
    for (int l = 0; l < LANES; l++) lane[l] += w[i + l] * x[i + l];
  for (int half = LANES / 2; half; half /= 2)
    for (int l = 0; l < half; l++) lane[l] += lane[l + half];
  return lane[0];
}

/* Four rows at once: their sums do not wait for one another. */
static void dot4(const float *w, const float *x, int64_t stride, float *out) {
  float lane[4][LANES] = {{0}};
  for (int64_t i = 0; i < stride; i += LANES)
    for (int r = 0; r < 4; r++)
      for (int l = 0; l < LANES; l++) lane[r][l] += w[r * stride + i + l] * x[i + l];
  for (int r = 0; r < 4; r++) {
    for (int half = LANES / 2; half; half /= 2)
      for (int l = 0; l < half; l++) lane[r][l] += lane[r][l + half];
    out[r] = lane[r][0];
  }
}

static void multiply(const float *w, const bw_units *in, int64_t from, int64_t to, float *sum) {
  int64_t i = from;
  for (; i + 4 <= to; i += 4) dot4(w + i * in->stride, in->value, in->stride, sum + i);
  for (; i < to; i++) sum[i] = dot(w + i * in->stride, in->value, in->stride);
}

/* A product of codes +1 and -1 is their XNOR; 0 is a dropped unit. */
static void xnor8(const bw_layer *layer, const bw_units *in, int64_t from, int64_t to, float *sum) {
  for (int64_t i = from; i < to; i++) {
    const int8_t *w = layer->code + i * in->stride;
    int32_t total = 0;
    for (int64_t j = 0; j < in->stride; j++) total += w[j] * in->code[j];
    sum[i] = (float)total;
  }
}

static void packed(const bw_layer *layer, const bw_units *in, int64_t from, int64_t to, float *sum) {
  const int64_t words = in->stride / 64;
  int64_t there = 0;
  for (int64_t k = 0; k < words; k++) there += __builtin_popcountll(in->mask[k]);
  for (int64_t i = from; i < to; i++) {
    const uint64_t *w = layer->bits + i * words;
    int64_t unequal = 0;
    for (int64_t k = 0; k < words; k++)
      unequal += __builtin_popcountll((w[k] ^ in->bits[k]) & in->mask[k]);
    sum[i] = (float)(there - 2 * unequal);
  }
}

void bw_hand_on(bw_network *net, int64_t step, int64_t layer, int64_t from, int64_t to) {
  bw_units *u = net->units + layer;
  const double rate = layer == net->layers ? 0.0 : layer ? net->drop_hidden : net->drop_input;
  const uint64_t key = bw_key(net->seed, step, layer * BW_STREAMS + BW_DROP);
  const float kept = bw_kept(net, layer);
  for (int64_t i = from; i < to; i += 64) {
    uint64_t bits = 0, mask = 0;
    for (int j = 0; j < 64; j++) {
      const int64_t at = i + j;
      const int there = at < u->count && !(rate > 0 && bw_uniform(key, at) < (float)rate);
      const float value = there ? u->output[at] * kept : 0.0f;
      u->value[at] = value;
      u->code[at] = (int8_t)(there && net->binary ? (value >= 0 ? 1 : -1) : 0);
      bits |= (uint64_t)(there && value >= 0) << j;
      mask |= (uint64_t)there << j;
    }
    u->bits[i / 64] = bits;
    u->mask[i / 64] = mask;
  }
}

void bw_forward(bw_network *net, int64_t step, int64_t number, int64_t part, int64_t parts) {
  const bw_layer *layer = net->layer + number;
  const bw_units *in = net->units + number;
  bw_units *out = net->units + number + 1;
  int64_t from, end;
  bw_share(layer->outputs, part, parts, &from, &end);
  const int64_t to = end < layer->outputs ? end : layer->outputs;
  if (!net->binary) multiply(layer->weight, in, from, to, out->sum);
  else if (net->kernel == BW_MULTIPLY) multiply(layer->sign, in, from, to, out->sum);
  else if (net->kernel == BW_XNOR8) xnor8(layer, in, from, to, out->sum);
  else packed(layer, in, from, to, out->sum);
  const uint64_t key = bw_key(net->seed, step, (number + 1) * BW_STREAMS + BW_UNITS);
  for (int64_t i = from; i < to; i++) {
    float z = out->sum[i];
    z = z / (float)layer->sum_scale;
    if (layer->bias) z += layer->bias[i];
    out->sum[i] = z;
    float value = bw_activate(net->forward, z);
    if (net->binary && net->stochastic_units && number + 1 < net->layers)
      value = (double)bw_uniform(key, i) < bw_hard_sigmoid(value) ? 1.0f : -1.0f;
    else if (net->binary)
      value = value >= 0 ? 1.0f : -1.0f;
    out->output[i] = value;
  }
  bw_hand_on(net, step, number + 1, from, end);
}
