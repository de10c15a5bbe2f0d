/* convert.h -- elements from one type of real number to another: f64, f32, f16, bf16.
 *
 * To a narrower type they are rounded to the nearest, ties to even, once: f64 to bf16 too. NaNs stay
 * NaNs; what is too large becomes infinite, and is counted. */
#ifndef STATE_CONVERT_H
#define STATE_CONVERT_H

#include <stdint.h>
#include "state/safetensors.h"

/* Local. F64, F32, F16 or BF16? */
bool convert_supports(StType t);
/* Local. n elements; `out` may be `in`, or lie so that both end together. Finite ones that became
 * infinite. */
int64_t convert(StType from, const void *in, StType to, void *out, int64_t n);

#endif
