/* SPDX-License-Identifier: Apache-2.0 */
/* One call runs a whole plan on a batch: images shared among threads, or for few images the work inside each step. */
#ifdef _OPENMP
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#endif

#include "plan.h"

int bw_features(void);
int bw_lanes(int op);
int64_t bw_sizes(int which);
int bw_run(const bw_plan *plan, const bw_feed *feeds, int64_t *const *results, int64_t images,
           uint8_t *arena, int threads);

/* Bit 0: AVX2, 1: VNNI, 2: vector popcount, 3: OpenMP, 4: VNNI with 512 bits. */
int bw_features(void) {
  int features = 0;
#ifdef BW_AVX2
  features |= 1;
#endif
#if defined(BW_VNNI512) || defined(BW_VNNI256)
  features |= 2;
#endif
#ifdef BW_VPOPCNT
  features |= 4;
#endif
#ifdef _OPENMP
  features |= 8;
#endif
#ifdef BW_VNNI512
  features |= 16;
#endif
  return features;
}

int bw_lanes(int op) {
  switch (op) {
    case BW_DOT8: return BW_DOT_LANES;
    case BW_DOT16: return BW_DOT16_LANES;
    case BW_XNOR: return BW_XNOR_LANES;
    case BW_LUT: return BW_LUT_LANES;
    default: return 1;
  }
}

/* Sizes of the structures, so that the caller can check that it agrees on them. */
int64_t bw_sizes(int which) {
  return which == 0 ? (int64_t)sizeof(bw_op) : which == 1 ? (int64_t)sizeof(bw_plan) : BW_PAD_ROWS;
}

static int64_t items_of(const bw_op *op, const bw_tile *tile) {
  switch (op->op) {
    case BW_INPUT: case BW_OUTPUT: case BW_ARGMAX: return tile->count;
    case BW_PACK_U8: case BW_PACK_I16: case BW_PACK_BITS: case BW_PACK_INDEX: case BW_PATCHES:
      return tile->count * op->out.h;
    case BW_DOT8: case BW_DOT16: case BW_XNOR: case BW_LUT: return bw_gemm_items(op, tile);
    default: return tile->count * op->out.h * op->out.w;
  }
}

static bw_range function_of(const bw_op *op) {
  switch (op->op) {
    case BW_INPUT: return bw_input;
    case BW_OUTPUT: return bw_output;
    case BW_PACK_U8: case BW_PACK_I16: case BW_PACK_BITS: case BW_PACK_INDEX: return bw_pack;
    case BW_PATCHES: return bw_patches;
    case BW_DOT8: case BW_DOT16: case BW_XNOR: case BW_LUT: return bw_gemm;
    case BW_DEPTHWISE: return bw_depthwise;
    case BW_WIDE: return bw_wide;
    case BW_POOL: return bw_pool;
    case BW_THRESHOLD: case BW_REQUANT: return bw_pointwise;
    default: return bw_argmax;
  }
}

static void run_tile(const bw_plan *plan, const bw_tile *tile) {
  for (int i = 0; i < plan->n_ops; i++)
    function_of(&plan->ops[i])(&plan->ops[i], tile, 0, items_of(&plan->ops[i], tile));
}

/* The part [begin, end) of `total` items that is chunk `index` of `chunks`. */
static void share(int64_t total, int64_t index, int64_t chunks, int64_t *begin, int64_t *end) {
  *begin = total * index / chunks;
  *end = total * (index + 1) / chunks;
}

#ifdef _OPENMP

typedef struct {
  int64_t next, done; /* chunks taken and finished */
} progress;

BW_INLINE void relax(int *spins) {
  if (++*spins > 2000) {
    sched_yield();
    *spins = 0;
  }
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/* All threads walk through the steps and take chunks of each, so that one that comes late, because something else
 * runs on its core, holds up nobody: the others have done its work. */
static void walk(const bw_plan *plan, const bw_tile *tile, int threads, progress *steps) {
  for (int i = 0; i < plan->n_ops; i++) {
    const bw_op *op = &plan->ops[i];
    const int64_t items = items_of(op, tile);
    const int64_t chunks = items < 4 * threads ? items : 4 * threads;
    int64_t chunk, begin, end;
    while ((chunk = __atomic_fetch_add(&steps[i].next, 1, __ATOMIC_RELAXED)) < chunks) {
      share(items, chunk, chunks, &begin, &end);
      function_of(op)(op, tile, begin, end);
      __atomic_fetch_add(&steps[i].done, 1, __ATOMIC_RELEASE);
    }
    for (int spins = 0; __atomic_load_n(&steps[i].done, __ATOMIC_ACQUIRE) < chunks;) relax(&spins);
  }
}

/* Fewer images than threads: all threads on each tile. */
static int run_shared(const bw_plan *plan, const bw_tile *whole, int threads) {
  const int64_t tiles = (whole->count + plan->tile - 1) / plan->tile;
  progress *steps = calloc((size_t)(tiles * plan->n_ops), sizeof(progress));
  if (steps == NULL) return 0;
#pragma omp parallel num_threads(threads)
  for (int64_t t = 0; t < tiles; t++) {
    bw_tile tile = *whole;
    share(whole->count, t, tiles, &tile.first, &tile.count);
    tile.count -= tile.first;
    walk(plan, &tile, threads, steps + t * plan->n_ops);
  }
  free(steps);
  return 1;
}

/* Tiles of images, each by one thread with its own part of the arena. */
static void run_tiles(const bw_plan *plan, const bw_tile *whole, int threads) {
  int64_t tiles = (whole->count + plan->tile - 1) / plan->tile;
  tiles = (tiles + threads - 1) / threads * threads; /* no thread waits for one that has a whole tile more */
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t t = 0; t < tiles; t++) {
    bw_tile tile = *whole;
    tile.arena += plan->arena * omp_get_thread_num();
    share(whole->count, t, tiles, &tile.first, &tile.count);
    tile.count -= tile.first;
    if (tile.count > 0) run_tile(plan, &tile);
  }
}

#endif

#define WORK_PER_THREAD 4000000 /* multiply-accumulates for which waking a thread pays */

/* Returns 0, or 1 + the number of an input that leaves its interval. `arena` holds one part per thread. */
int bw_run(const bw_plan *plan, const bw_feed *feeds, int64_t *const *results, int64_t images,
           uint8_t *arena, int threads) {
  int32_t bad = 0;
  const bw_tile whole = {arena, 0, images, feeds, results, &bad};
#ifdef _OPENMP
  const int64_t useful = 1 + images * plan->work / WORK_PER_THREAD;
  if (threads > useful) threads = (int)useful;
  if (threads > 1 && images >= threads) {
    run_tiles(plan, &whole, threads);
    return bad;
  }
  if (threads > 1 && images > 0 && run_shared(plan, &whole, threads)) return bad;
#endif
  (void)threads;
  const int64_t tiles = (images + plan->tile - 1) / plan->tile;
  for (int64_t t = 0; t < tiles; t++) {
    bw_tile tile = whole;
    share(images, t, tiles, &tile.first, &tile.count);
    tile.count -= tile.first;
    run_tile(plan, &tile);
  }
  return bad;
}
