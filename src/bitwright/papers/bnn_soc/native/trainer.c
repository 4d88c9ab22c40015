/* SPDX-License-Identifier: Apache-2.0 */
/* Samples one after the other; each is a row of phases, each phase a fixed number of parts. A thread takes the next
 * part of all, and waits until the phases in front of it are done: any number of threads comes to the same end. */
#include <sched.h>
#include <stdatomic.h>

#include "thread_pool.h"
#include "network.h"

typedef struct {
  bw_network *net;
  const uint8_t *images;
  const int64_t *labels, *order;
  const double *rates;
  int64_t count, parts;
  _Atomic int64_t ticket, done;
} bw_course;

int64_t bw_network_size(void) { return sizeof(bw_network); }
int64_t bw_layer_size(void) { return sizeof(bw_layer); }
int64_t bw_units_size(void) { return sizeof(bw_units); }

static void enter(bw_network *net, int64_t step, const uint8_t *image) {
  bw_units *in = net->units;
  for (int64_t i = 0; i < in->count; i++) in->output[i] = net->input_value[image[i]];
  bw_hand_on(net, step, 0, 0, in->stride);
}

/* Errors of the output units, with exaggerated targets (spec 2.12). */
static void judge(bw_network *net, int64_t label, double rate) {
  bw_units *out = net->units + net->layers;
  if (net->exaggerate_scaled) rate = rate * net->layer[net->layers - 1].rate_scale;
  for (int64_t i = 0; i < out->count; i++) {
    const double given = out->value[i];
    double target = i == label ? 1.0 : -1.0;
    if (given == target) target = target + net->exaggeration * target * rate;
    const float error = (float)(given - target);
    const float at = net->at_sum ? out->sum[i] : out->value[i];
    out->delta[i] = -(bw_derivative(net->backward, at) * error);
  }
}

static void phase(bw_course *c, int64_t sample, int64_t number, int64_t part) {
  bw_network *net = c->net;
  const int64_t L = net->layers, step = net->step + sample, index = c->order[sample];
  if (number == 0) {
    if (part == 0) enter(net, step, c->images + index * net->units[0].count);
  } else if (number <= L) {
    bw_forward(net, step, number - 1, part, c->parts);
  } else if (number == L + 1) {
    if (part == 0) judge(net, c->labels[index], c->rates[sample]);
  } else {
    bw_backward(net, step, 2 * L + 1 - number, c->rates[sample], part, c->parts);
  }
}

static void work(void *job) {
  bw_course *c = job;
  const int64_t phases = 2 * c->net->layers + 2, all = phases * c->count;
  for (;;) {
    const int64_t ticket = atomic_fetch_add(&c->ticket, 1);
    const int64_t at = ticket / c->parts;
    if (at >= all) return;
    for (int spins = 0; atomic_load_explicit(&c->done, memory_order_acquire) < at * c->parts; spins++)
      if (spins > 2000) sched_yield();
    phase(c, at / phases, at % phases, ticket % c->parts);
    atomic_fetch_add_explicit(&c->done, 1, memory_order_release);
  }
}

/* Train on images[order[0 .. count)], each of as many bytes as there are inputs, in up to `threads` threads. */
void bw_train(bw_network *net, const uint8_t *images, const int64_t *labels, const int64_t *order,
              const double *rates, int64_t count, int64_t threads) {
  bw_course c = {net, images, labels, order, rates, count, threads, 0, 0};
  bw_run_threads(work, &c, threads);
  net->step += count;
}

/* The binary copies anew, after masters were set. */
void bw_refresh(bw_network *net) {
  for (int64_t l = 0; l < net->layers; l++) bw_binarize(net, net->step, l, 0, net->layer[l].stride);
}

/* Sums of the output units (count x classes) for each image; nothing is dropped or drawn. */
void bw_classify(bw_network *net, const uint8_t *images, int64_t count, float *sums) {
  bw_network quiet = *net;
  const int64_t L = net->layers, classes = net->units[L].count;
  quiet.drop_input = quiet.drop_hidden = 0;
  quiet.stochastic_units = 0;
  for (int64_t n = 0; n < count; n++) {
    enter(&quiet, 0, images + n * net->units[0].count);
    for (int64_t l = 0; l < L; l++) bw_forward(&quiet, 0, l, 0, 1);
    for (int64_t i = 0; i < classes; i++) sums[n * classes + i] = net->units[L].sum[i];
  }
}
