/* operators.h -- the weights of a unit in two parts, for ZeRO levels of single weights.
 *
 *     layer of llama    q k v | o | gate up | down        GEMMs of one x, fused, are one operator
 *     splits            self_attn.q_proj.* self_attn.k_proj.* self_attn.v_proj.*
 *                       self_attn.*
 *                       self_attn.* mlp.gate_proj.* mlp.up_proj.*
 *
 * A split names the operators before a cut; all other weights keep the unit's level. By the sums of
 * a search, what a choice costs is nearly proportional to its bytes, so cuts at several sizes
 * matter, and which operators are on which side does not. */
#ifndef PLAN_SEARCH_OPERATORS_H
#define PLAN_SEARCH_OPERATORS_H

#include "ir/graph.h"

enum { MAX_SPLITS = 3 };

typedef struct {
    int n;
    const char *const *pattern[MAX_SPLITS]; /* each ends with NULL */
} WeightSplits;

/* Local. The splits of a kind's weights, as the kind's graph was built: none of a unit with a
 * single operator. */
Err weight_splits(const Graph *kind, Arena *arena, WeightSplits *out);
/* Local. UnitOptions.zero_weights of a split: "self_attn.*=3,mlp.gate_proj.*=3". */
Err weight_rules(const WeightSplits *s, int split, int level, Arena *arena, const char **out);

#endif
