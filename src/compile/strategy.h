/* strategy.h -- names to layouts: what lies where, as a table.
 *
 *   {"*.q_proj.weight", "tp", 0}     every parameter of that name is cut along dim 0 over axis tp
 *
 * Rows match parameters and named values of units alike, first match per axis wins. A row is a pin:
 * place honours it, gives the gradient the same layout, and chooses freely between pins. Megatron's
 * tensor parallelism, sequence parallelism, the vocabulary-parallel loss are rows, not code. */
#ifndef COMPILE_STRATEGY_H
#define COMPILE_STRATEGY_H

#include "ir/graph.h"
#include "layout/layout.h"
#include "layout/mesh.h"

typedef struct {
    const char *pattern; /* of a name within the unit; * stands for anything */
    const char *axis;    /* of the dense view */
    int dim;             /* that is cut */
} StrategyRow;

typedef struct {
    const char *name;
    const StrategyRow *row;
    int n;
} Strategy;

/* Tensor parallelism over heads, feed-forward and vocabulary, as Megatron lays it out. */
extern const Strategy strategy_tp;
/* The same, with the stream cut by tokens between the products (sequence parallelism). */
extern const Strategy strategy_tp_sequence;

/* Local. pin[v]: the layout that the strategy asks for value v on this mesh, and pinned[v]: whether
 * it asks for one. Parameters are always pinned, and so are gradients of pinned values, with
 * partial read as replicate; gradients of parameters never are. ERR_CONFIG when a row cannot be
 * honoured. */
Err strategy_pins(const Strategy *s, const Graph *g, const Mesh *mesh, Arena *arena, Layout **pin,
                  bool **pinned);

#endif
