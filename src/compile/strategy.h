/* strategy.h -- a table from names to layouts.
 *
 *   {"*.q_proj.weight", "tp", 0, BY_HEAD}     every parameter of that name is sharded along dim 0
 *                                             over axis tp, in whole heads
 *
 * Rows match parameters and named values of units; the first match per axis wins. A row is a pin:
 * place honors it, gives the gradient the same layout, and chooses freely between pins. Megatron's
 * tensor parallelism, sequence parallelism and the vocabulary-parallel loss are rows, not code.
 * Strategies compose: the rows of one are followed by those of its base. */
#ifndef COMPILE_STRATEGY_H
#define COMPILE_STRATEGY_H

#include "ir/unit.h"
#include "layout/layout.h"
#include "layout/mesh.h"

/* The indivisible unit. Key heads are where they are read: several parts may hold one. */
typedef enum { BY_ONE, BY_HEAD, BY_KEY_HEAD } CutBy;

typedef struct {
    const char *pattern; /* of a name within the unit; * matches anything */
    const char *axis;    /* of the dense view */
    int dim;             /* the dim that is sharded */
    CutBy by;
} StrategyRow;

typedef struct Strategy {
    const char *name;
    const StrategyRow *row;
    int n;
    int64_t heads, key_heads, head_size; /* of the model; 0 if no row is by heads */
    const struct Strategy *base;         /* whose rows follow these; NULL: none */
} Strategy;

/* Megatron's tensor parallelism over heads, feed-forward and vocabulary. */
extern const Strategy strategy_tp;
/* The same, with the stream sharded by tokens between the GEMMs (sequence parallelism). */
extern const Strategy strategy_tp_sequence;

/* Local. The strategy for a model with these heads. */
Strategy strategy_with_heads(const Strategy *s, int64_t heads, int64_t key_heads,
                             int64_t head_size);

/* Local. pin[v]: the strategy's layout of value v on this mesh; pinned[v]: whether there is one.
 * Parameters and inputs are always pinned, as are the streams x, y and their gradients: units meet
 * there. Gradients of pinned values have the same pin; gradients of parameters have none.
 * ERR_CONFIG if a row cannot be honored. */
Err strategy_pins(const Strategy *s, const Graph *g, const Mesh *mesh, Arena *arena, Layout **pin,
                  bool **pinned);
/* Local. The layout in which programs use each parameter of the model. ERR_CONFIG if units that
 * hold one parameter would have it in different layouts. */
Err strategy_use(const Strategy *s, const Model *m, const Mesh *mesh, Arena *arena, Layout **use);

#endif
