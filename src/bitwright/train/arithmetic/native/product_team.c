// SPDX-License-Identifier: Apache-2.0
// Threads and memory. The caller may hand over the fork of its OpenMP: two pools on the same
// processors would wait for one another.
#include <stdlib.h>

#include "product.h"

#ifndef BW_NO_THREADS
#include <pthread.h>
#endif

typedef void (*Fork)(void (*)(void *), void *, unsigned, unsigned);
static Fork fork_team;

// `GOMP_parallel` of a libgomp in this process, or NULL.
void bw_product_team(void *fork) { fork_team = (Fork)fork; }

#ifndef BW_NO_THREADS
typedef struct {
  void (*work)(void *);
  void *job;
} Start;

static void *begin(void *given) {
  const Start *start = given;
  start->work(start->job);
  return NULL;
}
#endif

// Calls `work(job)` in up to `threads` threads; it takes its tasks from a counter in the job.
void bw_in_team(void (*work)(void *), void *job, int64_t threads) {
  if (threads <= 1) {
    work(job);
    return;
  }
  if (fork_team) {
    fork_team(work, job, (unsigned)threads, 0);
    return;
  }
#ifdef BW_NO_THREADS
  work(job);
#else
  Start start = {work, job};
  pthread_t others[63];
  int64_t started = 0;
  while (started < threads - 1 && started < 63) {
    if (pthread_create(&others[started], NULL, begin, &start)) break;
    started++;
  }
  work(job);
  for (int64_t i = 0; i < started; i++) pthread_join(others[i], NULL);
#endif
}

// Memory in whole cache lines, with some more than asked for behind; free() it.
void *bw_room(int64_t bytes) { return aligned_alloc(64, (size_t)((bytes + 191) / 64 * 64)); }

// Whether a sum of so many pairs may be scaled as a 32-bit integer: it fits, and its product with
// the unit is a normal float.
int bw_direct(const Shape *shape, int64_t pairs) {
  const int normal = shape->exponent <= 126 && shape->exponent >= -90;
  return pairs <= shape->limit && !shape->split && normal;
}

void bw_add_sums(double *total, const int32_t *sums, int64_t count, double factor) {
  for (int64_t i = 0; i < count; i++) total[i] += factor * (double)sums[i];
}

// int8 or int16 elements from number `from` on, as int16.
void bw_widen(const void *source, int64_t bytes, int64_t from, int16_t *target, int64_t count) {
  if (bytes == 2) {
    memcpy(target, (const int16_t *)source + from, (size_t)count * 2);
    return;
  }
  const int8_t *s = (const int8_t *)source + from;
  for (int64_t i = 0; i < count; i++) target[i] = s[i];
}
