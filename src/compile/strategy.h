/* strategy.h -- names to layouts: what lies where, as a table.
 *
 *   {"*.q_proj.weight", "tp", 0, BY_HEAD}     every parameter of that name is cut along dim 0 over
 *                                             axis tp, in whole heads
 *
 * Rows match parameters and named values of units alike, first match per axis wins. A row is a pin:
 * place honours it, gives the gradient the same layout, and chooses freely between pins. Megatron's
 * tensor parallelism, sequence parallelism, the vocabulary-parallel loss are rows, not code. */
#ifndef COMPILE_STRATEGY_H
#define COMPILE_STRATEGY_H

#include "ir/unit.h"
#include "layout/layout.h"
#include "layout/mesh.h"

/* What is never cut in two. Key heads lie where they are read: several parts may hold one. */
typedef enum { BY_ONE, BY_HEAD, BY_KEY_HEAD } CutBy;

typedef struct {
    const char *pattern; /* of a name within the unit; * stands for anything */
    const char *axis;    /* of the dense view */
    int dim;             /* that is cut */
    CutBy by;
} StrategyRow;

typedef struct Strategy {
    const char *name;
    const StrategyRow *row;
    int n;
    int64_t heads, key_heads, head_size; /* of the model; 0 where no row is by heads */
    const struct Strategy *base;         /* whose rows follow these; NULL: none */
} Strategy;

/* Tensor parallelism over heads, feed-forward and vocabulary, as Megatron lays it out. */
extern const Strategy strategy_tp;
/* The same, with the stream cut by tokens between the products (sequence parallelism). */
extern const Strategy strategy_tp_sequence;

/* Local. The strategy for a model with these heads. */
Strategy strategy_with_heads(const Strategy *s, int64_t heads, int64_t key_heads,
                             int64_t head_size);

/* Local. pin[v]: the layout that the strategy asks for value v on this mesh, and pinned[v]: whether
 * it asks for one. Parameters and inputs are always pinned, and so are the streams x, y and their
 * gradients: units meet there. Gradients of pinned values are pinned alike; gradients of parameters
 * never are. ERR_CONFIG when a row cannot be honoured. */
Err strategy_pins(const Strategy *s, const Graph *g, const Mesh *mesh, Arena *arena, Layout **pin,
                  bool **pinned);
/* Local. The layout in which programs use each parameter of the model. ERR_CONFIG when units that
 * hold one parameter would have it in different layouts. */
Err strategy_use(const Strategy *s, const Model *m, const Mesh *mesh, Arena *arena, Layout **use);

#endif
