/* SPDX-License-Identifier: Apache-2.0
 * Integer inference and its comparison with golden vectors; see replay.h.
 *
 * cc -std=c99 -O2 replay.c -o replay && ./replay [FOLDER]
 * exit code 0: every value of every layer is equal; 1: one differs; 2: a file is missing.
 */
#include "replay.h"

#include "network.h"

/* Value `index` of a parameter. */
static int64_t get(const uint8_t *params, int32_t which, int64_t index) {
  const bw_param *p = &bw_params[which];
  int64_t bit = index * p->bits;
  uint64_t value = 0;
  int32_t k;
  for (k = 0; k < p->bits; k++, bit++)
    value |= (uint64_t)(params[p->offset + bit / 8] >> (bit % 8) & 1) << k;
  if (p->encoding == BW_BIPOLAR) return value ? 1 : -1;
  if (p->encoding == BW_SIGNED && (value >> (p->bits - 1) & 1))
    return (int64_t)value - ((int64_t)1 << p->bits);
  return (int64_t)value;
}

/* The row of a per-channel parameter: one for all channels, or one each. */
static int32_t row(int32_t which, int32_t channel) {
  return bw_params[which].rows == 1 ? 0 : channel;
}

static const bw_tensor *input(const bw_node *n, int32_t k) {
  return &bw_tensors[bw_inputs[n->first_input + k]];
}

static int64_t size(const bw_tensor *t) { return (int64_t)t->height * t->width * t->channels; }

/* a: stride 2, padding top left bottom right, dilation 2, groups, kernel height and width packed
 * as height * 65536 + width; params: weight (O, KH, KW, I), bias. */
static void conv(const bw_node *n, const int32_t *x, int32_t *y, const uint8_t *params) {
  const bw_tensor *in = input(n, 0), *out = &bw_tensors[n->output];
  int32_t kh = (int32_t)(n->a[9] / 65536), kw = (int32_t)(n->a[9] % 65536);
  int32_t groups = (int32_t)n->a[8], columns = in->channels / groups;
  int32_t each = out->channels / groups, r, c, o, i, j, k;
  for (o = 0; o < out->channels; o++) {
    int32_t start = o / each * columns;
    int64_t bias = n->param[1] < 0 ? 0 : get(params, n->param[1], o);
    for (r = 0; r < out->height; r++)
      for (c = 0; c < out->width; c++) {
        int64_t sum = bias;
        for (i = 0; i < kh; i++) {
          int64_t at_r = (int64_t)r * n->a[0] - n->a[2] + i * n->a[6];
          if (at_r < 0 || at_r >= in->height) continue;
          for (j = 0; j < kw; j++) {
            int64_t at_c = (int64_t)c * n->a[1] - n->a[3] + j * n->a[7];
            const int32_t *pixel;
            int64_t w;
            if (at_c < 0 || at_c >= in->width) continue;
            pixel = x + (at_r * in->width + at_c) * in->channels + start;
            w = (((int64_t)o * kh + i) * kw + j) * columns;
            for (k = 0; k < columns; k++) sum += get(params, n->param[0], w + k) * pixel[k];
          }
        }
        y[((int64_t)r * out->width + c) * out->channels + o] = (int32_t)sum;
      }
  }
}

/* params: weight (O, I), bias. */
static void dense(const bw_node *n, const int32_t *x, int32_t *y, const uint8_t *params) {
  int32_t columns = input(n, 0)->channels, o, k;
  for (o = 0; o < bw_tensors[n->output].channels; o++) {
    int64_t sum = n->param[1] < 0 ? 0 : get(params, n->param[1], o);
    for (k = 0; k < columns; k++) sum += get(params, n->param[0], (int64_t)o * columns + k) * x[k];
    y[o] = (int32_t)sum;
  }
}

/* a: base, step; params: thresholds (C or 1, T) ascending, flip (C or 1). */
static void threshold(const bw_node *n, const int32_t *x, int32_t *y, const uint8_t *params) {
  const bw_tensor *out = &bw_tensors[n->output];
  int32_t steps = bw_params[n->param[0]].columns;
  int64_t k;
  for (k = 0; k < size(out); k++) {
    int32_t channel = (int32_t)(k % out->channels), low = 0, high = steps;
    int64_t start = (int64_t)row(n->param[0], channel) * steps, value = x[k];
    if (n->param[1] >= 0 && get(params, n->param[1], row(n->param[1], channel))) value = -value;
    while (low < high) { /* the number of thresholds that are not above the value */
      int32_t middle = (low + high) / 2;
      if (value >= get(params, n->param[0], start + middle)) low = middle + 1;
      else high = middle;
    }
    y[k] = (int32_t)(n->a[0] + n->a[1] * low);
  }
}

/* Quotient by 2^shift, rounded down: the same on every compiler, for negative numbers too. */
static int64_t shift_down(int64_t value, int64_t shift) {
  int64_t unit = (int64_t)1 << shift;
  return value >= 0 ? value / unit : -((unit - 1 - value) / unit);
}

/* a: shift, rounding (0 half to even, 1 half up, 2 down), lo, hi; params: multiplier, offset. */
static void requant(const bw_node *n, const int32_t *x, int32_t *y, const uint8_t *params) {
  const bw_tensor *out = &bw_tensors[n->output];
  int64_t k, shift = n->a[0];
  for (k = 0; k < size(out); k++) {
    int32_t channel = (int32_t)(k % out->channels);
    int64_t value = x[k] * get(params, n->param[0], row(n->param[0], channel)) +
                    get(params, n->param[1], row(n->param[1], channel));
    int64_t low = shift_down(value, shift);
    if (shift > 0 && n->a[1] != 2) {
      int64_t rest = value - low * ((int64_t)1 << shift), half = (int64_t)1 << (shift - 1);
      if (rest > half || (rest == half && (n->a[1] == 1 || low % 2 != 0))) low++;
    }
    y[k] = (int32_t)(low < n->a[2] ? n->a[2] : low > n->a[3] ? n->a[3] : low);
  }
}

/* a: shift, rounding, lo, hi, significant bits, smallest magnitude but 0; params: multiplier, offset.
 * Rounded once, to a multiple of 2^drop, so that no more than the significant bits remain. */
static void requant_float(const bw_node *n, const int32_t *x, int32_t *y, const uint8_t *params) {
  const bw_tensor *out = &bw_tensors[n->output];
  int64_t k;
  for (k = 0; k < size(out); k++) {
    int32_t channel = (int32_t)(k % out->channels);
    int64_t value = x[k] * get(params, n->param[0], row(n->param[0], channel)) +
                    get(params, n->param[1], row(n->param[1], channel));
    int64_t left = value < 0 ? -value : value, bits = 0, drop, shift, low;
    for (; left > 0; left /= 2) bits++;
    drop = bits - n->a[4] - n->a[0];
    if (drop < 0) drop = 0;
    shift = n->a[0] + drop;
    low = shift_down(value, shift);
    if (shift > 0 && n->a[1] != 2) {
      int64_t rest = value - low * ((int64_t)1 << shift), half = (int64_t)1 << (shift - 1);
      if (rest > half || (rest == half && (n->a[1] == 1 || low % 2 != 0))) low++;
    }
    low *= (int64_t)1 << drop;
    if (low < n->a[5] && -low < n->a[5]) low = 0;
    y[k] = (int32_t)(low < n->a[2] ? n->a[2] : low > n->a[3] ? n->a[3] : low);
  }
}

/* params: table (C or 1, levels). */
static void lookup(const bw_node *n, const int32_t *x, int32_t *y, const uint8_t *params) {
  const bw_tensor *in = input(n, 0);
  int32_t columns = bw_params[n->param[0]].columns;
  int64_t k;
  for (k = 0; k < size(in); k++) {
    int64_t start = (int64_t)row(n->param[0], (int32_t)(k % in->channels)) * columns;
    y[k] = (int32_t)get(params, n->param[0], start + x[k] - in->lo);
  }
}

/* a: kernel 2, stride 2, padding top left bottom right. */
static void pool(const bw_node *n, const int32_t *x, int32_t *y) {
  const bw_tensor *in = input(n, 0), *out = &bw_tensors[n->output];
  int32_t r, c, k, i, j;
  for (r = 0; r < out->height; r++)
    for (c = 0; c < out->width; c++)
      for (k = 0; k < out->channels; k++) {
        int64_t sum = 0, largest = in->lo;
        for (i = 0; i < n->a[0]; i++)
          for (j = 0; j < n->a[1]; j++) {
            int64_t at_r = r * n->a[2] - n->a[4] + i, at_c = c * n->a[3] - n->a[5] + j, value;
            if (at_r < 0 || at_r >= in->height || at_c < 0 || at_c >= in->width) continue;
            value = x[(at_r * in->width + at_c) * in->channels + k];
            sum += value;
            if (value > largest) largest = value;
          }
        y[((int64_t)r * out->width + c) * out->channels + k] =
            (int32_t)(n->op == BW_MAX_POOL ? largest : sum);
      }
}

/* space_to_depth: a: block. upsample: a: factor 2. */
static void rearrange(const bw_node *n, const int32_t *x, int32_t *y) {
  const bw_tensor *in = input(n, 0), *out = &bw_tensors[n->output];
  int64_t r, c, k, b = n->a[0];
  for (r = 0; r < out->height; r++)
    for (c = 0; c < out->width; c++)
      for (k = 0; k < out->channels; k++) {
        int64_t from_r, from_c, channel = k;
        if (n->op == BW_SPACE_TO_DEPTH) {
          from_r = r * b + k / in->channels / b;
          from_c = c * b + k / in->channels % b;
          channel = k % in->channels;
        } else {
          from_r = r / n->a[0];
          from_c = c / n->a[1];
        }
        *y++ = x[(from_r * in->width + from_c) * in->channels + channel];
      }
}

/* Channels of all inputs, pixel by pixel. */
static void concat(const bw_node *n, const int32_t *arena, int32_t *y) {
  const bw_tensor *out = &bw_tensors[n->output];
  int64_t pixel, pixels = (int64_t)out->height * out->width;
  int32_t part, k;
  for (pixel = 0; pixel < pixels; pixel++)
    for (part = 0; part < n->inputs; part++) {
      const bw_tensor *in = input(n, part);
      const int32_t *x = arena + in->arena + pixel * in->channels;
      for (k = 0; k < in->channels; k++) *y++ = x[k];
    }
}

/* a: k. Of equal values the first comes first. */
static void top_k(const bw_node *n, const int32_t *x, int32_t *y) {
  int32_t channels = input(n, 0)->channels, i, j, k;
  for (k = 0; k < n->a[0]; k++) {
    int32_t best = -1;
    for (i = 0; i < channels; i++) {
      int32_t taken = 0;
      for (j = 0; j < k; j++) taken |= y[j] == i;
      if (!taken && (best < 0 || x[i] > x[best])) best = i;
    }
    y[k] = best;
  }
}

void bw_layer(int32_t index, int32_t *arena, const uint8_t *params) {
  const bw_node *n = &bw_nodes[index];
  const int32_t *x = arena + input(n, 0)->arena, *b;
  int32_t *y = arena + bw_tensors[n->output].arena;
  int64_t k;
  switch (n->op) {
    case BW_CONV: conv(n, x, y, params); break;
    case BW_DENSE: dense(n, x, y, params); break;
    case BW_THRESHOLD: threshold(n, x, y, params); break;
    case BW_REQUANT: requant(n, x, y, params); break;
    case BW_REQUANT_FLOAT: requant_float(n, x, y, params); break;
    case BW_LOOKUP: lookup(n, x, y, params); break;
    case BW_MAX_POOL: case BW_SUM_POOL: pool(n, x, y); break;
    case BW_SPACE_TO_DEPTH: case BW_UPSAMPLE: rearrange(n, x, y); break;
    case BW_CONCAT: concat(n, arena, y); break;
    case BW_TOP_K: top_k(n, x, y); break;
    case BW_ADD: /* a: the two multipliers */
      b = arena + input(n, 1)->arena;
      for (k = 0; k < size(input(n, 0)); k++) y[k] = (int32_t)(n->a[0] * x[k] + n->a[1] * b[k]);
      break;
    case BW_FLATTEN:
      for (k = 0; k < size(input(n, 0)); k++) y[k] = x[k];
      break;
  }
}

void bw_run(int32_t *arena, const uint8_t *params) {
  int32_t k;
  for (k = 0; k < BW_NODES; k++) bw_layer(k, arena, params);
}

#ifndef BW_NO_MAIN
#include <stdio.h>

static int32_t arena[BW_ARENA];
static uint8_t params[BW_PARAM_BYTES + 1];

static FILE *open_in(const char *folder, const char *name) {
  char path[4096];
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return NULL;
  return fopen(path, "rb");
}

/* One frame of a tensor's golden levels: compared with the arena, or put there. */
static int golden(FILE *file, const bw_tensor *t, int32_t frame, const char *layer) {
  int64_t k, count = size(t);
  if (fseek(file, (long)(t->golden + 4 * frame * count), SEEK_SET)) return 2;
  for (k = 0; k < count; k++) {
    uint8_t raw[4];
    int64_t value;
    if (fread(raw, 1, 4, file) != 4) return 2;
    value = (int64_t)raw[0] | (int64_t)raw[1] << 8 | (int64_t)raw[2] << 16 | (int64_t)raw[3] << 24;
    if (value >= (int64_t)1 << 31) value -= (int64_t)1 << 32;
    if (layer == NULL) arena[t->arena + k] = (int32_t)value;
    else if (arena[t->arena + k] != value) {
      printf("%s: frame %ld, element %ld: expected %ld, got %ld\n", layer, (long)frame, (long)k,
             (long)value, (long)arena[t->arena + k]);
      return 1;
    }
  }
  return 0;
}

static uint32_t crc32(const uint8_t *bytes, int64_t count) {
  uint32_t crc = 0xffffffffu;
  int64_t k;
  int bit;
  for (k = 0; k < count; k++) {
    crc ^= bytes[k];
    for (bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

int main(int argc, char **argv) {
  const char *folder = argc > 1 ? argv[1] : ".";
  FILE *packed = open_in(folder, "params.bin"), *vectors = open_in(folder, "golden.bin");
  int32_t frame, k;
  int bad = 0;
  if (packed == NULL || vectors == NULL ||
      fread(params, 1, sizeof params, packed) != BW_PARAM_BYTES ||
      fseek(vectors, 0, SEEK_END) || ftell(vectors) != BW_GOLDEN_BYTES) {
    fprintf(stderr, "cannot replay: params.bin or golden.bin is missing or has another size\n");
    return 2;
  }
  for (frame = 0; frame < BW_FRAMES && !bad; frame++) {
    for (k = 0; k < BW_INPUTS && !bad; k++) bad = golden(vectors, &bw_tensors[k], frame, NULL);
    for (k = 0; k < BW_NODES && !bad; k++) {
      bw_layer(k, arena, params);
      bad = golden(vectors, &bw_tensors[bw_nodes[k].output], frame, bw_nodes[k].name);
    }
  }
  if (bad == 2) fprintf(stderr, "cannot replay: golden.bin is too short\n");
  if (!bad && crc32(params, BW_PARAM_BYTES) != BW_PARAM_CRC32) {
    fprintf(stderr, "cannot replay: params.bin: a checksum differs, though every value is equal\n");
    return 2;
  }
  if (!bad) printf("%d layers, %d frames: every value equal\n", BW_NODES, BW_FRAMES);
  return bad;
}
#endif
