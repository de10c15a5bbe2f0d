/* grad.h -- the gradient of each op, as nodes.
 *
 * A rule reads a forward node and the gradients of its outputs, adds nodes to the graph, and adds
 * their outputs to the gradients of the node's inputs. Shapes stay global; no rule depends on
 * ranks. compile/differentiate walks a graph backwards and applies the rules. */
#ifndef IR_GRAD_H
#define IR_GRAD_H

#include "ir/build.h"

typedef struct {
    Graph *g;
    int n;       /* values that existed before */
    Value *grad; /* [n]: the sum so far, or NO_VALUE */
} Grad;

/* Local. Applies the rule of forward node `index`; errors are also set in the graph. ERR_CHECK if
 * the op has no gradient. */
Err grad_apply(Grad *d, int index);

/* Local. Names the gradient of each named value d.NAME, after all its terms are added. */
void grad_names(Grad *d);

#endif
