/* lower.h -- between the two halves of lower: which bytes are whose, and where they lie. */
#ifndef COMPILE_LOWER_H
#define COMPILE_LOWER_H

#include "compile/compile.h"

/* A value's bytes: those of a root value, from an offset on, by strides (all in elements). */
typedef struct {
    Value root;
    int64_t offset;
    int64_t stride[MAX_DIMS];
    bool set;
} Bytes;

/* The order of every phase, and where each node stands in it. */
typedef struct {
    int *list[N_PHASES], n[N_PHASES];
    int *at[N_PHASES]; /* [n_nodes]: position in that list, or -1 */
} Orders;

/* Local. Whose bytes each value has: views show their input; parts of a join, and what a product
 * adds to, lie inside of the output; where a kernel may write over an input that dies, it does. */
Err lower_bytes(const Graph *g, const Orders *orders, Arena *arena, Bytes **out);
/* Local. The node that waits for what a node begins, or the node itself: until then its operands
 * are in use. */
int lower_end_of(const Graph *g, int node);

#endif
