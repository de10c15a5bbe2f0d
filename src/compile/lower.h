/* lower.h -- between the parts of lower: which bytes are whose (lower_bytes.c), where they lie
 * (lower_memory.c), and what is done with them (lower.c), several nodes at once or one (lower_pairs.c). */
#ifndef COMPILE_LOWER_H
#define COMPILE_LOWER_H

#include "compile/compile.h"

/* A value's bytes: those of a root value, from an offset on, by strides (all in elements). */
typedef struct {
    Value root;
    int64_t offset;
    int64_t stride[MAX_DIMS];
    bool set;
} StorageView;

/* The order of every phase, and where each node stands in it. */
typedef struct {
    int *list[N_PHASES], n[N_PHASES];
    int *at[N_PHASES];   /* [n_nodes]: position in that list, or -1 */
    int *with[N_PHASES]; /* [n_nodes]: the next that is done with it, at its place; or NO_NODE */
} Orders;

typedef struct {
    const Graph *g;
    Arena *arena;
    int *maker; /* [n_values] */
    Orders orders;
    StorageView *bytes; /* [n_values] */
    ProgTensor *tensor; /* [n_values] */
    Program *p;         /* to be filled in */
} LowerContext;

/* Local. Takes nodes that are done with others out of a phase's list; `at` is to be filled in after. */
Err lower_pairs(LowerContext *l, Phase phase);
/* Local. The op that does both. */
OpId lower_pair_op(OpId op, OpId also);
/* Local. Whose bytes each value has: views show their input; parts of a join, and what a product
 * adds to, lie inside of the output; where a kernel may write over an input that dies, it does. */
Err lower_bytes(const LowerContext *l, StorageView **out);
/* Local. A region and an offset for every value, and the program's bytes by region. */
Err lower_memory(LowerContext *l);
/* Local. The node that waits for what a node begins, or the node itself: until then its operands
 * are in use. */
int lower_end_of(const Graph *g, int node);

#endif
