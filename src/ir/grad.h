/* grad.h -- the gradient of each op, as nodes.
 *
 * A rule reads a forward node and the gradients of its outputs, adds nodes to the graph, and adds
 * what they make to the gradients of the node's inputs. Shapes stay global; no rule knows of ranks.
 * compile/differentiate walks a graph backwards and calls the rules. */
#ifndef IR_GRAD_H
#define IR_GRAD_H

#include "ir/build.h"

typedef struct {
    Graph *g;
    int n;       /* values that existed before */
    Value *grad; /* [n]: the sum so far, or NO_VALUE */
} Grad;

/* Local. Applies the rule of forward node `index`; the errors are the graph's. ERR_CHECK when the
 * op has no gradient. */
Err grad_apply(Grad *d, int index);
/* Local. One more term of the gradient of v; integers have none. */
void grad_add(Grad *d, Value v, Value term);

/* Local. Calls the gradient of a named value d.NAME, once all its terms are there. */
void grad_names(Grad *d);

#endif
