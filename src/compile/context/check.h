/* check.h -- proves an attention plan before it runs.
 *
 *   visits    every live pair of half blocks is visited once
 *   moves     the n-th send from a to b meets the n-th receive on b from a: the same payload, block
 *             and halves; no rank waits forever
 *   data      a rank has the queries and keys that it visits, and the payloads that it sends
 *   partials  every contribution to o, dq and dkv reaches the owner of its block, once
 *   bytes     all ranks together send what the formula of the method says
 *   work      the busiest rank over the mean is that of the method */
#ifndef COMPILE_CONTEXT_CHECK_H
#define COMPILE_CONTEXT_CHECK_H

#include "compile/context/plan.h"

typedef struct {
    ContextSent sent;
    double balance;   /* work of the busiest rank over the mean */
    int64_t max_work; /* of one rank, in halves of a pair of half blocks */
} ContextCounts;

/* Local. ERR_CHECK names the first fault with its rank and step. `counts` may be NULL. */
Err context_check(const ContextPlan *p, Arena *temp, ContextCounts *counts);

#endif
