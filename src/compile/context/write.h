/* write.h -- the nodes of one attention by a plan, for one rank: compile/context.c finds the
 * values, write.c appends the nodes. */
#ifndef COMPILE_CONTEXT_WRITE_H
#define COMPILE_CONTEXT_WRITE_H

#include "compile/context/plan.h"
#include "ir/graph.h"

/* The tokens of one rank as keys: their extent, and their coordinates. */
typedef struct {
    Dim rows;
    int64_t at;          /* coordinate of the first, if they are one run of rows */
    const int64_t *span; /* else their spans, as device/row_spans.h has them */
    int64_t n_spans;     /* 0: one run */
} ContextKeys;

/* Keys or values of a block on this rank, and partial sums of their gradients; NO_VALUE: not
 * here. */
typedef struct {
    Value k, v, dk, dv;
} BlockValues;

typedef struct {
    Graph *g;
    const TransferPart *gather; /* of the keys, before the pass: its group and axes */
    int me, ranks;              /* this rank's place in the group */
    bool backward;
    ContextKeys *block; /* [ranks] */
    BlockValues *at;    /* [ranks] */
} ContextWriter;

/* Local. Appends the steps of the plan for an attention node, whose outputs are made by the last
 * ones. */
Err context_write_forward(ContextWriter *w, const ContextPlan *p, const Node *whole);
/* Local. The same for attention_dx. `into`: the gradients of q, k and v of this rank. */
Err context_write_backward(ContextWriter *w, const ContextPlan *p, const Node *whole,
                           const Value into[3]);

#endif
