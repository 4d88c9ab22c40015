// SPDX-License-Identifier: Apache-2.0
// Clock cycle by clock cycle, where the beats of a design are; no data. Three kinds of machine:
// one that steps (everything that computes), a window (writer and reader of a buffer), and the
// two ends of the top. The rules are those in the headers of the modules of rtl/lib:
// an output register or FIFO is a queue that takes a beat if it was not full when the cycle began;
// a pipeline moves as a whole, if all queues at its end have room. See hw/tokens.py.
#include <stdint.h>

enum { STEPS = 0, WINDOW = 1, SOURCE = 2, SINK = 3 };
#define MAKES 0x80u  // a step makes a beat; bits 0 and 1: it takes one of input 0, 1

typedef struct {
  int64_t capacity, count, fresh, pushed, popped, delay, high, total;
  // fresh: bit k: a beat came k + 1 cycles ago; for delay - 1 cycles, in which it cannot leave
} Queue;

typedef struct {
  int64_t kind, inputs, outputs, in[2], out[2];
  int64_t latency, steps;  // steps: of one frame, or of the part that repeats
  const uint8_t *flags;    // for each of these steps
  int64_t words, span, pixel_out, rows_out, columns_out;  // of a window
  int64_t pixel_drop, row_drop, last_drop;
  // State.
  int64_t step, done, active;  // active: the last cycle in which it did something
  uint64_t pipe;
  int64_t used, ready, dropped, column, row;
} Block;

static int room(const Block *b, const Queue *q) {
  for (int i = 0; i < b->outputs; i++)
    if (q[b->out[i]].count >= q[b->out[i]].capacity) return 0;
  return 1;
}

static int there(const Queue *q) { return q->count > __builtin_popcountll((uint64_t)q->fresh); }

// Move the pipeline by one; `made` is what the step of this cycle puts into it. 1: it held a beat.
static int shift(Block *b, Queue *q, int made) {
  int last = made;
  int busy = made;
  if (b->latency > 1) {
    last = (int)((b->pipe >> (b->latency - 2)) & 1u);
    busy |= b->pipe != 0;
    b->pipe = (b->pipe << 1) | (uint64_t)made;
    if (b->latency <= 64) b->pipe &= ((uint64_t)1 << (b->latency - 1)) - 1;
  }
  if (last)
    for (int i = 0; i < b->outputs; i++) q[b->out[i]].pushed = 1;
  return busy;
}

static int run_steps(Block *b, Queue *q) {
  if (!room(b, q)) return 0;
  uint8_t flags = b->flags[b->step];
  int go = 1, made = 0;
  for (int i = 0; i < b->inputs; i++)
    if ((flags >> i & 1) && !there(&q[b->in[i]])) go = 0;
  if (go) {
    for (int i = 0; i < b->inputs; i++)
      if (flags >> i & 1) q[b->in[i]].popped = 1;
    made = (flags & MAKES) != 0;
    if (++b->step == b->steps) b->step = 0;
  }
  return shift(b, q, made) | go;
}

static int run_window(Block *b, Queue *q) {
  int busy = 0, written = 0;
  if (b->used < b->words && there(&q[b->in[0]])) {
    q[b->in[0]].popped = 1;
    busy = written = 1;
  }
  int64_t ready_add = written, used_add = written;
  if (room(b, q)) {
    int go = b->step > 0 || b->ready >= b->span;
    if (b->dropped) {  // a pixel was read out in the last cycle that moved
      used_add -= b->dropped;
      b->dropped = 0;
      busy = 1;
    }
    if (go && ++b->step == b->pixel_out) {
      b->step = 0;
      int64_t drop = b->pixel_drop;
      if (++b->column == b->columns_out) {
        b->column = 0;
        drop = b->row_drop;
        if (++b->row == b->rows_out) {
          b->row = 0;
          drop = b->last_drop;
        }
      }
      ready_add -= drop;
      b->dropped = drop;
    }
    busy |= shift(b, q, go) | go;
  }
  b->used += used_add;
  b->ready += ready_add;
  return busy;
}

static int run_end(Block *b, Queue *q, int64_t cycle, int64_t frames, int64_t *ends) {
  if (b->done >= frames) return 0;
  if (b->kind == SOURCE) {
    if (!room(b, q)) return 0;
    q[b->out[0]].pushed = 1;
  } else {
    if (!there(&q[b->in[0]])) return 0;
    q[b->in[0]].popped = 1;
  }
  if (++b->step == b->steps) {
    b->step = 0;
    if (b->kind == SINK) ends[b->done] = cycle;
    b->done++;
  }
  return 1;
}

static void settle(Queue *q) {
  q->count += q->pushed - q->popped;
  q->total += q->pushed;
  q->fresh = ((q->fresh << 1) | q->pushed) & (((int64_t)1 << (q->delay - 1)) - 1);
  if (q->count > q->high) q->high = q->count;
  q->pushed = q->popped = 0;
}

// Runs until all frames have left by every sink (0), nothing can move any more (1), or `limit`
// cycles are over (2). `ends`: frames numbers for each sink, in order of the blocks.
int bw_tokens(Block *blocks, int64_t count, Queue *queues, int64_t queue_count, int64_t frames,
              int64_t limit, int64_t *ends, int64_t *cycles) {
  int64_t sinks = 0;
  for (int64_t i = 0; i < count; i++) sinks += blocks[i].kind == SINK;
  for (int64_t cycle = 0; cycle < limit; cycle++) {
    int64_t busy = 0, sink = 0, finished = 0;
    for (int64_t i = 0; i < count; i++) {
      Block *b = &blocks[i];
      int moved;
      if (b->kind == STEPS) {
        moved = run_steps(b, queues);
      } else if (b->kind == WINDOW) {
        moved = run_window(b, queues);
      } else {
        moved = run_end(b, queues, cycle, frames, ends + sink * frames);
        if (b->kind == SINK) {
          sink++;
          finished += b->done >= frames;
        }
      }
      if (moved) b->active = cycle;
      busy |= moved;
    }
    for (int64_t i = 0; i < queue_count; i++) {
      busy |= queues[i].fresh;
      settle(&queues[i]);
    }
    *cycles = cycle + 1;
    if (finished == sinks) return 0;
    if (!busy) return 1;
  }
  return 2;
}

int64_t bw_tokens_block_size(void) { return sizeof(Block); }
int64_t bw_tokens_queue_size(void) { return sizeof(Queue); }
