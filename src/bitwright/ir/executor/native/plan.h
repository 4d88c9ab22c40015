/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: what Python prepares and C executes. `layout.py` mirrors these structures field by field.
 *
 * Every few-bit tensor is stored as unsigned bytes, code = level - zero, with zero = min(lo, 0), so that level 0
 * (the padding) always has a code. Other tensors are int32 or int64 levels (zero = 0). All are NHWC, images
 * one after the other, channel fastest.
 *
 * A product ("gemm") sees each output pixel as a list of pieces of its source image: piece i starts piece_offset[i]
 * bytes after the pixel's base address and has piece_length[i] units. Weights lie in panels of `lanes` rows, in the
 * order [panel][unit][lane]; a unit is 4 bytes of activations for the dot products, 64 bits for XNOR, one
 * table index for the look-up kernel. piece_flush[i] != 0: widen the narrow accumulators after the piece.
 */
#ifndef BW_PLAN_H
#define BW_PLAN_H

#include <stdint.h>
#include <string.h>

#define BW_INLINE static inline __attribute__((always_inline))

#if defined(__AVX2__) && !defined(BW_GENERIC)
#define BW_AVX2 1
#include <immintrin.h>
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define BW_VNNI512 1
#elif defined(__AVXVNNI__)
#define BW_VNNI256 1
#endif
#if defined(__AVX512F__) && defined(__AVX512VPOPCNTDQ__)
#define BW_VPOPCNT 1
#endif
#endif

#ifdef BW_VNNI512
#define BW_DOT_LANES 16
#else
#define BW_DOT_LANES 8
#endif
#ifdef BW_VPOPCNT
#define BW_XNOR_LANES 8
#else
#define BW_XNOR_LANES 4
#endif
#define BW_DOT16_LANES 8
#define BW_LUT_LANES 32
#define BW_MAX_PIXELS 4  /* register block: pixels */
#define BW_MAX_PANELS 4  /* register block: panels */
#define BW_ACC_SIZE 512  /* accumulators of one register block */
#define BW_PAD_ROWS 128  /* per-row tables are readable this far beyond the last row */

enum { BW_U8 = 0, BW_I16 = 1, BW_I32 = 2, BW_I64 = 3 };
enum {
  BW_INPUT, BW_OUTPUT, BW_PACK_U8, BW_PACK_I16, BW_PACK_BITS, BW_PACK_INDEX, BW_PATCHES,
  BW_DOT8, BW_DOT16, BW_XNOR, BW_LUT, BW_DEPTHWISE, BW_WIDE,
  BW_POOL, BW_THRESHOLD, BW_REQUANT, BW_TOP_K, BW_MOVE, BW_ADD, BW_SUM_POOL, BW_LOOKUP
};
enum { BW_EP_RAW = 0, BW_EP_THRESHOLD = 1, BW_EP_REQUANT = 2 };
enum { BW_HALF_EVEN = 0, BW_HALF_UP = 1, BW_FLOOR = 2 };

typedef struct {
  int64_t offset; /* bytes into the arena */
  int64_t pitch;  /* bytes from image to image */
  int32_t kind, zero;
  int32_t h, w, c;
  int32_t pixel; /* bytes from pixel to pixel */
} bw_tensor;

typedef struct {
  int32_t op, port;       /* port: index of the graph input or output; move: first channel of the target */
  int32_t narrow;         /* finished accumulators are int16 (thresholds too), else int32; threshold: bytes */
  int32_t wraps;          /* the kernel itself counts modulo 2^16, and `start` is 16 bits wide */
  int32_t epilogue;
  int32_t significant;    /* requant: significant bits of a float's levels; 0: all integers are levels */
  bw_tensor in, out;
  bw_tensor other;                        /* add: the second operand */
  int64_t times[2];                       /* add: multipliers */
  int32_t kh, kw, sh, sw, dh, dw, pt, pl; /* window; padding top and left */
  int32_t groups, rows, panels;           /* rows and panels per group */
  int32_t group_bytes;                    /* bytes from group to group inside a source pixel */
  int32_t pieces, pack;                   /* pack: digits per table index */
  int32_t radix, fill;                    /* pack: radix of the digits; code of padding; lookup: entries, or 0: one table for all */
  int64_t panel_bytes;
  int64_t lo, hi;                         /* input: legal levels; requant: clip */
  int64_t smallest;                       /* requant to a float: smaller magnitudes are 0 */
  int32_t bipolar, steps;                 /* input: 0 is illegal; steps: thresholds per row */
  int32_t shift, rounding;
  int64_t padded;                         /* entries from one threshold's row of the table to the next */
  const int32_t *piece_offset, *piece_length, *piece_flush;
  const void *weight;
  const void *start;     /* per row (padded to panels): added to the accumulator */
  const void *table;     /* lut: 16 bytes per index; lookup: one code an element, [channel][entry] */
  const void *threshold; /* [steps][rows padded]; requant with steps 1: multipliers as doubles */
  const void *base, *step; /* threshold: code = base + step * count, per row; requant: addends as doubles */
  const int64_t *multiplier, *addend; /* requant, per row */
} bw_op;

typedef struct {
  const bw_op *ops;
  int64_t arena; /* bytes one worker needs */
  int64_t work; /* multiply-accumulates per image */
  int32_t n_ops, tile; /* tile: images per tile */
} bw_plan;

typedef struct {
  const void *data;
  int32_t kind;    /* 1, 2, 4, 8: bytes of a signed integer; -1: unsigned byte */
} bw_feed;

typedef struct {
  uint8_t *arena;
  int64_t first, count; /* the tile's images */
  const bw_feed *feeds;
  int64_t *const *results;
  int32_t *bad_port; /* set to 1 + port of an input that leaves its interval */
} bw_tile;

/* One register block: `pixels` pixels times `panels` panels; rows of accumulators, pixel by pixel. */
typedef void (*bw_micro)(const bw_op *op, int pixels, int panels, const uint8_t *const *px,
                         const uint8_t *weight, int64_t row, void *acc);

void bw_micro_dot8(const bw_op *, int, int, const uint8_t *const *, const uint8_t *, int64_t, void *);
void bw_micro_dot16(const bw_op *, int, int, const uint8_t *const *, const uint8_t *, int64_t, void *);
void bw_micro_xnor(const bw_op *, int, int, const uint8_t *const *, const uint8_t *, int64_t, void *);
void bw_micro_lut(const bw_op *, int, int, const uint8_t *const *, const uint8_t *, int64_t, void *);

/* Pixels of a register block, finished: `to[p]` points at the first of `count` output channels. */
void bw_epilogue(const bw_op *op, const void *acc, int width, int64_t row, int count, int pixels,
                 uint8_t *const *to);

/* Every step is a number of independent items, any range of which can be done by any thread. */
typedef void (*bw_range)(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
int64_t bw_gemm_items(const bw_op *op, const bw_tile *tile);
void bw_gemm(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_depthwise(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_wide(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_pack(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_patches(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_pool(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_pointwise(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_top_k(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_move(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_add(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_sum_pool(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_lookup(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_input(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);
void bw_output(const bw_op *op, const bw_tile *tile, int64_t begin, int64_t end);

/* Keep a vector in a register: without it GCC folds one load into each of its uses, and loads become the limit. */
#ifndef BW_KEEP
#ifdef __AVX512F__
#define BW_KEEP(v) __asm__("" : "+v"(v))
#else
#define BW_KEEP(v) __asm__("" : "+x"(v))
#endif
#endif
/* The same of an address: else GCC adds several in a vector, behind all that vectors still compute. */
#define BW_KEEP_ADDRESS(p) __asm__("" : "+r"(p))

/* Work that several threads do together; see pool.c. */
typedef void (*bw_job)(void *context, int worker);
int bw_together(int threads, bw_job job, void *context);

BW_INLINE void bw_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Position of an output pixel of the tile. */
typedef struct {
  int64_t image;
  int y, x;
} bw_place;

BW_INLINE bw_place bw_place_of(const bw_tensor *t, int64_t pixel) {
  const int64_t area = (int64_t)t->h * t->w;
  const int64_t rest = pixel % area;
  return (bw_place){pixel / area, (int)(rest / t->w), (int)(rest % t->w)};
}

BW_INLINE void bw_advance(const bw_tensor *t, bw_place *at) {
  if (++at->x < t->w) return;
  at->x = 0;
  if (++at->y < t->h) return;
  at->y = 0;
  at->image++;
}

BW_INLINE uint8_t *bw_at(const bw_tensor *t, const bw_tile *tile, bw_place at) {
  return tile->arena + t->offset + at.image * t->pitch + ((int64_t)at.y * t->w + at.x) * t->pixel;
}

/* Kernels that count in int32 leave int32 rows; the epilogue of a narrow step wants int16. */
BW_INLINE void bw_narrow_rows(int32_t *acc, int count) {
  int16_t *to = (int16_t *)acc;
  for (int i = 0; i < count; i += 16) {
    int16_t part[16];
    for (int j = 0; j < 16; j++) part[j] = (int16_t)acc[i + j];
    memcpy(to + i, part, sizeof part);
  }
}

BW_INLINE int bw_element(int kind) { return 1 << kind; }

BW_INLINE int64_t bw_load(const uint8_t *data, int kind, int64_t index) {
  switch (kind) {
    case BW_U8: return data[index];
    case BW_I16: return ((const int16_t *)data)[index];
    case BW_I32: return ((const int32_t *)data)[index];
    default: return ((const int64_t *)data)[index];
  }
}

BW_INLINE void bw_store(uint8_t *data, int kind, int64_t index, int64_t value) {
  switch (kind) {
    case BW_U8: data[index] = (uint8_t)value; break;
    case BW_I16: ((int16_t *)data)[index] = (int16_t)value; break;
    case BW_I32: ((int32_t *)data)[index] = (int32_t)value; break;
    default: ((int64_t *)data)[index] = value;
  }
}

#endif
