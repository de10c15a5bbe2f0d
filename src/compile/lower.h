/* lower.h -- the interface between the parts of lower: the storage that values share
 * (lower_bytes.c), their addresses (lower_memory.c), and the instructions (lower.c), of one node or
 * of several (lower_pairs.c). Private to lower. */
#ifndef COMPILE_LOWER_H
#define COMPILE_LOWER_H

#include "compile/compile.h"

/* The storage of a value: that of a root value, from an offset on, by strides (all in elements). */
typedef struct {
    Value root;
    int64_t offset;
    int64_t stride[MAX_DIMS];
    bool set;
} StorageView;

/* The order of every phase, and the position of each node in it. */
typedef struct {
    int *list[N_PHASES], n[N_PHASES];
    int *at[N_PHASES];   /* [n_nodes]: position in that list, or -1 */
    int *with[N_PHASES]; /* [n_nodes]: the next node of the same instruction; or NO_NODE */
} Orders;

typedef struct {
    const Graph *g;
    Arena *arena;
    int *maker; /* [n_values] */
    Orders orders;
    StorageView *bytes; /* [n_values] */
    ProgTensor *tensor; /* [n_values] */
    Program *p;         /* the result */
} LowerContext;

/* Local. Removes nodes that join another's instruction from a phase's list; sets `with`. `at` is
 * set after. */
Err lower_pairs(LowerContext *l, Phase phase);
/* Local. The op that does both. */
OpId lower_pair_op(OpId op, OpId also);
/* Local. True for an output that a node does not need once it has joined another: its region. */
bool lower_is_spare(const Node *joined, int output);
/* Local. The storage of each value. Views share that of their input. The parts of a join, and the
 * `sum` operand of a GEMM, are inside that of the output. A kernel overwrites an input that dies,
 * where it may. */
Err lower_bytes(const LowerContext *l, StorageView **out);
/* Local. A region and an offset for every value, and the program's bytes by region. */
Err lower_memory(LowerContext *l);
/* Local. The node that waits for the transfer that a node begins, or the node itself: until then
 * its operands are in use. */
int lower_end_of(const Graph *g, int node);

#endif
