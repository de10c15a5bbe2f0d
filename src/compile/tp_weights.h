/* tp_weights.h -- layouts of single weights along tp, in place of Megatron's.
 *
 *     self_attn.k_proj.*=whole,mlp.down_proj.*=outputs
 *
 *     word       weight [o,i] of a GEMM      its bias     embedding [v,d]
 *     outputs    sharded along o             along o      along its words
 *     inputs     sharded along i             whole        along its width
 *     whole      on every rank               whole        on every rank
 *
 * A rule becomes rows of a strategy before those of Megatron (compile/strategy_rows.c), so pins,
 * homes, transfers and memory follow. A dim that consists of heads is sharded in whole heads.
 * Weights without a rule are as in Megatron. Patterns match names of weights within a unit, or with
 * the kind of the unit before, as layer/mlp.*; the first that matches decides. */
#ifndef COMPILE_TP_WEIGHTS_H
#define COMPILE_TP_WEIGHTS_H

#include "compile/strategy.h"

typedef enum { TP_WHOLE, TP_OUTPUTS, TP_INPUTS, N_TP_LAYOUTS } TpLayout;
/* Local. "whole", "outputs", "inputs". */
const char *tp_layout_name(TpLayout l);

/* Local. True if the parameter may have another layout than Megatron's: a weight with two dims of
 * the dense view that GEMMs or embeddings read, and nothing else. */
bool tp_weight_is_open(const Graph *g, int param);
/* Local. The bias of a weight: a parameter of its name with .bias; -1: none. */
int tp_weight_bias(const Graph *g, int weight);
/* Local. The layout of a weight by Megatron's rows. */
TpLayout tp_weight_default(const Graph *g, int weight);
/* Local. The row that gives parameter `param` the layout: of a weight, or of the bias of one. */
Err tp_weight_row(const Graph *g, int param, TpLayout l, Arena *arena, StrategyRow *out);
/* Local. True if the dim that the layout shards has a grain for each of `tp` ranks: heads of a
 * model with so many, or elements. *grains: how many there are; *what: "heads", "of dim 0". */
bool tp_weight_fits(const Strategy *s, const Graph *g, int weight, TpLayout l, int tp,
                    int64_t *grains, const char **what);

/* Local. True if the weight makes heads: of queries, keys or values. */
bool tp_weight_makes_heads(const Graph *g, int weight);
/* Local. True if tp ranks have copies of its key heads, should it be sharded along outputs. Then
 * all weights that make heads must be. */
bool tp_weight_has_copies(const Strategy *s, const Graph *g, int weight, int tp);

/* Local. True if the heads of attention are sharded over tp whatever other weights have: over cp
 * they are what attention plans move. Then weights that make heads are along outputs. */
bool tp_weights_keep_heads(const Mesh *mesh);

/* Rules to check. */
typedef struct {
    const char *key, *rules; /* key: as in messages; rules: NULL: none */
    const Strategy *s;       /* with the heads of the model */
    const Model *m;
    int tp;
    bool keeps_heads; /* tp_weights_keep_heads */
    Arena *temp;
} TpCheck;
/* Local. ERR_CONFIG for rules that name no open weight or no layout, that have no effect, or whose
 * layout the ranks of tp cannot have. */
Err tp_weights_check(const TpCheck *c);
/* Local. The TpLayout that the rules give a weight; -1: none does. Before place runs. */
int tp_weight_rule(const char *rules, const Graph *g, int weight);
/* Local. The strategy `base` with the rules of tp_weights_check; NULL: none yet. Its axis tp is
 * placed by seconds, and the stream is whole within layers too, unless `base` shards it. */
Err tp_weights_strategy(const Strategy *base, const Model *m, const char *rules, const Mesh *mesh,
                        Arena *arena, Strategy *out);

#endif
