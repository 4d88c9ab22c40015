// SPDX-License-Identifier: Apache-2.0
// Memory, widening and sums that the products share.
#include <stdlib.h>

#include "product.h"

// Memory in whole cache lines, with some more than asked for behind; free() it.
void *bw_allocate(int64_t bytes) { return aligned_alloc(64, (size_t)((bytes + 191) / 64 * 64)); }

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
