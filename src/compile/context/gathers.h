/* gathers.h -- the transfers around attention that place inserted, and their removal: keys are
 * gathered before it, and partial gradients of keys are reduce-scattered after it. */
#ifndef COMPILE_CONTEXT_GATHERS_H
#define COMPILE_CONTEXT_GATHERS_H

#include "ir/graph.h"

/* The nodes of a graph that a pass rewrites. */
typedef struct {
    const Graph *g;
    const Node *node;
    int n;
    const int *maker; /* [n_values] */
    bool *dropped;    /* [n] */
} OldNodes;

/* Local. Drops the maker of v and those of its operands, up to the gather, and finds its operand.
 * ERR_CHECK if v is not gathered. */
Err gathers_drop(const OldNodes *old, Value v, const TransferPart **move, Value *local);
/* Local. Drops the reduce-scatter of a partial gradient; *local is the value that it makes. */
Err gathers_drop_scatter(const OldNodes *old, Value v, Value *local);

#endif
