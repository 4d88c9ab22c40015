/* SPDX-License-Identifier: Apache-2.0 */
/* The sample-wise trainer of `papers/bnn_soc`. `trainer.py` mirrors these structures field by field, and
 * `reference.py` computes the same in numpy, operation by operation: compiled without fused multiply-add,
 * both give the same bits. Rows of weights have `stride` columns, a multiple of 64; those behind `inputs` are 0
 * and stay so. */
#ifndef BW_NETWORK_H
#define BW_NETWORK_H
#include <stdint.h>

#define BW_INLINE static inline __attribute__((always_inline))

enum { BW_SIGMOID, BW_TANH, BW_HARD_SIGMOID, BW_HARD_TANH, BW_STEP };
enum { BW_MULTIPLY, BW_XNOR8, BW_PACKED };

/* What the units of one layer gave, as the next layer reads it: a dropped unit is 0 and its mask bit is 0. */
typedef struct {
  int64_t count, stride;
  float *value;      /* stride */
  float *output;     /* stride: before any was dropped */
  float *sum;        /* count: scaled sums in front of the activation; not of the input */
  float *delta;      /* stride */
  int8_t *code;      /* stride */
  uint64_t *bits;    /* stride / 64: 1 is +1 */
  uint64_t *mask;    /* stride / 64: 1 is a unit that is there and not dropped */
} bw_units;

typedef struct {
  int64_t outputs, inputs, stride;
  float *weight;     /* outputs x stride: the masters */
  float *bias;       /* outputs, or NULL */
  uint64_t *bits;    /* outputs x stride / 64: the binary copy */
  int8_t *code;      /* outputs x stride, or NULL: the same in bytes */
  float *sign;       /* outputs x stride, or NULL: the same in floats */
  double rate_scale;  /* of the learning rate */
  double sum_scale;   /* what its sums are divided by */
  double error_scale; /* what errors that go back through it are divided by */
} bw_layer;

typedef struct {
  int64_t layers, binary, kernel, forward, backward;
  int64_t at_sum;             /* the derivative is taken at the sum, not at the output */
  int64_t float_back;         /* errors go back through the masters */
  int64_t stochastic_weights, stochastic_units, clip, exaggerate_scaled;
  double exaggeration, drop_input, drop_hidden;
  uint64_t seed;
  int64_t step;               /* samples before the first of this call */
  const float *input_value;   /* 256: of a pixel */
  bw_layer *layer;            /* layers */
  bw_units *units;            /* layers + 1 */
} bw_network;

/* --- numbers: activations in double, rounded once; `numbers.py` is the same ------------------- */

BW_INLINE double bw_exp(double x) { /* of x <= 0 */
  static const double c[13] = {1.0,          1.0,           1.0 / 2,       1.0 / 6,        1.0 / 24,
                               1.0 / 120,    1.0 / 720,     1.0 / 5040,    1.0 / 40320,    1.0 / 362880,
                               1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600};
  if (x < -700.0) x = -700.0;
  const double shifted = x * 1.4426950408889634 + 6755399441055744.0; /* rounds to nearest even */
  const double k = shifted - 6755399441055744.0;
  const double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
  double p = c[12];
  for (int i = 11; i >= 0; i--) p = p * r + c[i];
  union { uint64_t u; double d; } power = {(uint64_t)((int64_t)k + 1023) << 52};
  return p * power.d;
}

BW_INLINE double bw_tanh(double x) {
  const double a = x < 0 ? -x : x;
  const double e = bw_exp(-2.0 * a);
  const double t = a < 0x1p-12 ? a - a * a * a * (1.0 / 3) : (1.0 - e) / (1.0 + e);
  return x < 0 ? -t : t;
}

BW_INLINE double bw_sigmoid(double x) {
  const double e = bw_exp(x < 0 ? x : -x);
  return x < 0 ? e / (1.0 + e) : 1.0 / (1.0 + e);
}

BW_INLINE double bw_hard_sigmoid(double x) {
  const double y = (x + 1.0) * 0.5;
  return y < 0 ? 0.0 : y > 1 ? 1.0 : y;
}

BW_INLINE float bw_activate(int64_t kind, float z) {
  const double x = z;
  switch (kind) {
    case BW_SIGMOID: return (float)bw_sigmoid(x);
    case BW_TANH: return (float)bw_tanh(x);
    case BW_HARD_SIGMOID: return (float)bw_hard_sigmoid(x);
    case BW_HARD_TANH: return (float)(2.0 * bw_hard_sigmoid(x) - 1.0);
    default: return x >= 0 ? 1.0f : -1.0f;
  }
}

BW_INLINE float bw_derivative(int64_t kind, float z) {
  const double x = z;
  switch (kind) {
    case BW_SIGMOID: { const double s = bw_sigmoid(x); return (float)(s * (1.0 - s)); }
    case BW_TANH: { const double t = bw_tanh(x); return (float)(1.0 - t * t); }
    case BW_HARD_SIGMOID: return x >= -1 && x <= 1 ? 0.5f : 0.0f;
    default: return x >= -1 && x <= 1 ? 1.0f : 0.0f;
  }
}

/* Random numbers: a function of seed, step, stream and place alone (the finaliser of SplitMix64). */
BW_INLINE uint64_t bw_mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
BW_INLINE uint64_t bw_key(uint64_t seed, int64_t step, int64_t stream) {
  return bw_mix(bw_mix(bw_mix(seed) + (uint64_t)step) + (uint64_t)stream);
}
BW_INLINE float bw_uniform(uint64_t key, int64_t index) {
  return (float)(bw_mix(key + (uint64_t)index) >> 40) * 0x1p-24f;
}
enum { BW_DROP = 0, BW_UNITS = 1, BW_WEIGHTS = 2, BW_STREAMS = 3 }; /* stream: layer * 3 + one of these */

/* --- phases of one sample; `part` of `parts` of the rows or columns --------------------------- */
void bw_forward(bw_network *net, int64_t step, int64_t layer, int64_t part, int64_t parts);
void bw_backward(bw_network *net, int64_t step, int64_t layer, double rate, int64_t part, int64_t parts);
void bw_binarize(const bw_network *net, int64_t step, int64_t layer, int64_t from, int64_t to);
/* What a unit that is not dropped is multiplied by: of a binarized network only the sign goes on. */
BW_INLINE float bw_kept(const bw_network *net, int64_t layer) {
  const double rate = layer == net->layers ? 0.0 : layer ? net->drop_hidden : net->drop_input;
  return net->binary ? 1.0f : (float)(1.0 / (1.0 - rate));
}
/* Units [from, to), multiples of 64, as the next layer reads them: dropped, packed. */
void bw_hand_on(bw_network *net, int64_t step, int64_t layer, int64_t from, int64_t to);

/* The share [from, to) of `count` in blocks of 64. */
BW_INLINE void bw_share(int64_t count, int64_t part, int64_t parts, int64_t *from, int64_t *to) {
  const int64_t blocks = (count + 63) / 64;
  *from = blocks * part / parts * 64;
  *to = blocks * (part + 1) / parts * 64;
}
#endif
