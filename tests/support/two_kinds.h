/* two_kinds.h -- a test family whose layers alternate between two kinds.
 *
 *     layer 0, 2, ...   attend   y = x + o_proj(attention(q, k, v of rmsnorm(x)))
 *     layer 1, 3, ...   feed     y = x + down(silu(gate(a)) * up(a)), a = rmsnorm(x)
 *
 * A third kind of layer, which no layer has, must not be built. Parameters are named as in Llama,
 * so its strategies apply. */
#ifndef SUPPORT_TWO_KINDS_H
#define SUPPORT_TWO_KINDS_H

#include "model/build.h"

extern const FamilyBuilder two_kinds_builder;
/* Local. The test model "llama" with this builder and that many layers. */
ModelConfig two_kinds_config(int layers);

#endif
