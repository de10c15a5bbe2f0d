/* route_parts.h -- the interface between the parts of the pass route: the way of the rows (route.c)
 * and their further rounds (route_rounds.c). Private to route. */
#ifndef COMPILE_ROUTE_PARTS_H
#define COMPILE_ROUTE_PARTS_H

#include "compile/compile.h"

/* The exchange of one assign_rows. */
typedef struct {
    Value at, offsets;   /* of this rank's choices, over all experts */
    Value to, all, mine; /* as in route.c */
    Attr attr;           /* of its kernels; exchange.rounds: a room may be too small */
    int64_t rooms;       /* rows in all rooms that a rank sends */
} RowExchange;

/* Rewrites nodes into `g`: of the unit, or of a body that further rounds run. */
typedef struct {
    Graph *g;
    const CompileOptions *o;
    int parts, copies; /* ranks along ep, along etp */
    int32_t number;    /* of the first transfer of g */
    RowExchange *exchange;
    int n_exchanges;
    const Node *old;   /* [n_old]: the unit's nodes before the pass */
    int n_old, now;    /* now: of them, the one that is rewritten */
    int *maker;        /* [n_values]: of the old nodes */
    Value n_values;    /* before the pass */
    int8_t *rows;      /* [n_values]: 1 + the exchange of a value with rows of experts; 0: none */
    Value *begun;      /* [n_values]: rows that are on their way and not collected yet */
    Value *returned;   /* [n_values]: the same rows at the ranks of their tokens */
    bool *is_returned; /* [n_values]: some node wants them there */
    bool *has_rounds;  /* [n_values]: further rounds have added to `returned` */
} RoutePass;

/* route.c. Local. A node with one output, and that output. */
Value route_add(RoutePass *r, OpId op, const OpAttr *attr, int n_in, const Value *in,
                const Dims *given);
/* Local. Makes the newest node write `into`. */
void route_redirect(RoutePass *r, Value into);
/* Local. Adds a node of experts, and what sends, collects and returns its rows. */
Err route_node(RoutePass *r, const Node *n);
/* Local. Values for rows on their way in a graph of its own. */
Err route_open_rows(RoutePass *r);

/* route_rounds.c. Local. The rows v have returned in round 1: adds the further rounds, which read
 * and write them in the order of `at`, and in backward those of the gradients of weights. */
Err route_rounds(RoutePass *r, Value v);

#endif
