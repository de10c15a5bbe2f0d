/* convert.h -- converts elements between floating-point types: f64, f32, f16, bf16; and from those
 * of 8 bits.
 *
 * Narrowing rounds once, to nearest even, also from f64 to bf16. NaNs stay NaNs. Values that are
 * too large become infinite and are counted. */
#ifndef STATE_CONVERT_H
#define STATE_CONVERT_H

#include <stdint.h>
#include "state/safetensors.h"

/* Local. True for F64, F32, F16 and BF16; those of 8 bits are only read. */
bool convert_supports(StType t);
/* Local. Converts n elements and returns the number of finite elements that became infinite. `out`
 * may be `in`, or the two may overlap so that both end at the same address. */
int64_t convert(StType from, const void *in, StType to, void *out, int64_t n);

#endif
