// SPDX-License-Identifier: Apache-2.0
// The rules of `formats.rounding.Rounding`, in its order, for float and double.
#ifndef BW_ROUNDING_H
#define BW_ROUNDING_H
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

enum mode { HALF_EVEN, HALF_AWAY, HALF_ZERO, HALF_UP, HALF_DOWN, FLOOR, CEIL, UP, DOWN, STOCHASTIC };

// A function that rounds by every rule but STOCHASTIC; F is the suffix of the functions of libm.
// Loops over it vectorize where the mode is a constant.
#define DEFINE_ROUNDED(NAME, TYPE, F)                                              \
    INLINE TYPE NAME(TYPE x, int mode)                                             \
    {                                                                              \
        const TYPE half = (TYPE)0.5, one = (TYPE)1, zero = (TYPE)0;                \
        TYPE low = floor##F(x), high = ceil##F(x), whole = trunc##F(x);            \
        TYPE away = copysign##F(one, x);                                           \
        switch (mode) {                                                            \
        case HALF_AWAY:                                                            \
            return whole + (fabs##F(x - whole) >= half ? away : zero);             \
        case HALF_ZERO:                                                            \
            return whole + (fabs##F(x - whole) > half ? away : zero);              \
        case HALF_UP:                                                              \
            return low + (x - low >= half ? one : zero);                           \
        case HALF_DOWN:                                                            \
            return high - (high - x >= half ? one : zero);                         \
        case FLOOR:                                                                \
            return low;                                                            \
        case CEIL:                                                                 \
            return high;                                                           \
        case UP:                                                                   \
            return copysign##F(ceil##F(fabs##F(x)), x);                            \
        case DOWN:                                                                 \
            return whole;                                                          \
        default:                                                                   \
            return rint##F(x);                                                     \
        }                                                                          \
    }
#endif
