/* SPDX-License-Identifier: Apache-2.0 */
/* Bipolar by bipolar: see xnor.h. */
#include "xnor.h"

void bw_micro_xnor(const bw_op *op, int pixels, int panels, const uint8_t *const *px,
                   const uint8_t *weight, int64_t row, void *acc) {
  bw_xnor_block(op, pixels, panels, px, weight, (const int32_t *)op->start + row, acc,
                (int64_t)panels * BW_XNOR_LANES);
}
