/* SPDX-License-Identifier: Apache-2.0 */
/* One call runs a whole plan on a batch: images shared among threads, or for few images the work inside each step. */
#ifndef BW_NO_THREADS
#include <sched.h>
#endif
#include <stdlib.h>

#include "plan.h"

int bw_features(void);
int bw_lanes(int op);
int64_t bw_op_size(void);
int64_t bw_plan_size(void);
int64_t bw_pad_rows(void);
int bw_run(const bw_plan *plan, const bw_feed *feeds, int64_t *const *results, int64_t images,
           uint8_t *arena, int threads);

/* Bit 0: AVX2, 1: VNNI, 2: vector popcount, 3: threads, 4: VNNI with 512 bits. */
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
#ifndef BW_NO_THREADS
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

/* So that the caller can check that it agrees on the structures. */
int64_t bw_op_size(void) { return (int64_t)sizeof(bw_op); }
int64_t bw_plan_size(void) { return (int64_t)sizeof(bw_plan); }
int64_t bw_pad_rows(void) { return BW_PAD_ROWS; }

static int64_t items_of(const bw_op *op, const bw_tile *tile) {
  switch (op->op) {
    case BW_INPUT: case BW_OUTPUT: case BW_TOP_K: return tile->count;
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
    case BW_MOVE: return bw_move;
    case BW_ADD: return bw_add;
    case BW_SUM_POOL: return bw_sum_pool;
    case BW_LOOKUP: return bw_lookup;
    default: return bw_top_k;
  }
}

/* Whether a step is for nothing: an input has left its interval, for which tables are made. The inputs come first. */
static int in_vain(const bw_op *op, const bw_tile *tile) {
  return op->op != BW_INPUT && __atomic_load_n(tile->bad_port, __ATOMIC_RELAXED);
}

static void run_tile(const bw_plan *plan, const bw_tile *tile) {
  for (int i = 0; i < plan->n_ops && !in_vain(&plan->ops[i], tile); i++)
    function_of(&plan->ops[i])(&plan->ops[i], tile, 0, items_of(&plan->ops[i], tile));
}

/* The part [begin, end) of `total` items that is chunk `index` of `chunks`. */
static void share(int64_t total, int64_t index, int64_t chunks, int64_t *begin, int64_t *end) {
  *begin = total * index / chunks;
  *end = total * (index + 1) / chunks;
}

typedef struct {
  int64_t next, done; /* chunks taken and finished */
} progress;

/* What the threads of one call share. */
typedef struct {
  const bw_plan *plan;
  const bw_tile *whole;
  int64_t tiles, next_tile;
  int threads;
  progress *steps; /* tiles * n_ops, where threads share each tile */
} call;

static bw_tile tile_of(const call *c, int64_t index) {
  bw_tile tile = *c->whole;
  int64_t end;
  share(c->whole->count, index, c->tiles, &tile.first, &end);
  tile.count = end - tile.first;
  return tile;
}

BW_INLINE void relax(int *spins) {
#ifndef BW_NO_THREADS
  if (++*spins % 1024 == 0) sched_yield();
#else
  (void)spins;
#endif
  bw_pause();
}

/* All threads walk through the steps and take chunks of each, so that one that comes late, because something else
 * runs on its core, holds up nobody: the others have done its work. */
static void walk(const call *c, const bw_tile *tile, progress *steps) {
  for (int i = 0; i < c->plan->n_ops; i++) {
    const bw_op *op = &c->plan->ops[i];
    if (in_vain(op, tile)) return;
    const int64_t items = items_of(op, tile);
    const int64_t chunks = items < 4 * c->threads ? items : 4 * c->threads;
    int64_t chunk, begin, end;
    while ((chunk = __atomic_fetch_add(&steps[i].next, 1, __ATOMIC_RELAXED)) < chunks) {
      share(items, chunk, chunks, &begin, &end);
      function_of(op)(op, tile, begin, end);
      __atomic_fetch_add(&steps[i].done, 1, __ATOMIC_RELEASE);
    }
    for (int spins = 0; __atomic_load_n(&steps[i].done, __ATOMIC_ACQUIRE) < chunks;) relax(&spins);
  }
}

/* Few images: all threads on each tile, one arena. */
static void share_tiles(void *context, int worker) {
  const call *c = (const call *)context;
  (void)worker;
  for (int64_t t = 0; t < c->tiles; t++) {
    const bw_tile tile = tile_of(c, t);
    walk(c, &tile, c->steps + t * c->plan->n_ops);
  }
}

/* Many images: each tile by one thread, in its own part of the arena. */
static void take_tiles(void *context, int worker) {
  call *c = (call *)context;
  int64_t t;
  while ((t = __atomic_fetch_add(&c->next_tile, 1, __ATOMIC_RELAXED)) < c->tiles) {
    bw_tile tile = tile_of(c, t);
    tile.arena += c->plan->arena * worker;
    if (tile.count > 0) run_tile(c->plan, &tile);
  }
}

#define WORK_PER_THREAD 4000000 /* multiply-accumulates for which waking a thread pays */

/* Returns 0, or 1 + the number of an input that leaves its interval. `arena` holds one part per thread. */
int bw_run(const bw_plan *plan, const bw_feed *feeds, int64_t *const *results, int64_t images,
           uint8_t *arena, int threads) {
  int32_t bad = 0;
  const bw_tile whole = {arena, 0, images, feeds, results, &bad};
  call c = {plan, &whole, (images + plan->tile - 1) / plan->tile, 0, 1, NULL};
  const int64_t useful = images * plan->work / WORK_PER_THREAD;
  c.threads = (int)(useful < 1 ? 1 : useful < threads ? useful : threads);
  if (c.threads > 1 && images < c.threads)
    c.steps = calloc((size_t)(c.tiles * plan->n_ops), sizeof(progress));
  if (c.steps != NULL) {
    bw_together(c.threads, share_tiles, &c);
    free(c.steps);
    return bad;
  }
  c.tiles = (c.tiles + c.threads - 1) / c.threads * c.threads; /* the last tiles end together */
  if (c.threads > 1) bw_together(c.threads, take_tiles, &c);
  else take_tiles(&c, 0);
  return bad;
}
